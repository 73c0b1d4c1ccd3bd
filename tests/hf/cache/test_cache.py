"""RotatedCache as any attention implementation sees it: decoded on the fly."""

from copy import deepcopy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import AutoConfig, DynamicCache  # noqa: E402

from cachequant.errors import ConfigError, InputError  # noqa: E402
from cachequant.hf import RotatedCache, cache_keyword  # noqa: E402
from cachequant.kv import codec  # noqa: E402
from cachequant.kv.basis import Basis, plain  # noqa: E402
from helpers import assert_near  # noqa: E402

FORMATS = ["fp32", "fp16", "int8", "k4v4", "k3v2", "k4v4,1:k8v16", "k16v4", "k4v3+exact2"]
IDS = torch.randint(0, 131, (1, 400), generator=torch.Generator().manual_seed(1))


def run(model, ids, cache, cuts=(), **more):
    """(B, T, V) logits, the ids handed over in pieces."""
    parts = []
    for low, high in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        parts.append(model(ids[:, low:high], cache=cache, use_cache=True, **more).logits)
    return torch.cat(parts, 1).numpy()


def ours(load, kv, ids):
    with load(kv, "none").session() as session:
        return session.extend(ids[0].numpy(), logits="all")


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_chunks_of_a_page_give_the_logits_of_the_decoder(tiny, name, kv):
    model, load = tiny[name]
    ids = IDS[:, :333]
    got = run(model, ids, RotatedCache(model.config, kv), range(32, 333, 32))
    assert_near(got[0], ours(load, kv, ids))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_call_is_exact_in_itself_and_sees_codes_of_earlier_ones(tiny, implementation):
    model, d = tiny["llama"][0], 16
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        cache, dense = RotatedCache(model.config, "k4v3"), DynamicCache(config=model.config)
        got, want = (run(model, IDS[:, :135], c) for c in (cache, dense))
        np.testing.assert_allclose(got, want, atol=1e-5)
        for layer in dense.layers:
            for side, (x, bits) in enumerate(((layer.keys, 4), (layer.values, 3))):
                turn, back = plain(1, 1, d).array[0, 0, side, 1 : 1 + d], codec.rotation(d).T
                codes, scales = codec.encode(x[:, :, 32:128].numpy() @ turn, bits)
                x[:, :, 32:128] = torch.from_numpy(codec.decode(codes, scales, bits) @ back).float()
        got, want = (run(model, IDS[:, 135:145], c) for c in (cache, dense))
        assert_near(got, want)
    finally:
        model.set_attn_implementation(before)


def test_generate_in_chunks_of_a_page_follows_the_decoder(tiny):
    model, load = tiny["llama"]
    cache = RotatedCache(model.config)
    made = model.generate(IDS[:, :150], max_new_tokens=30, do_sample=False, prefill_chunk_size=32, cache=cache)
    assert made[0, 150:].tolist() == load("k4v4", "none").generate(IDS[0, :150].tolist(), 30).ids
    older = dict(past_key_values=RotatedCache(model.config), prefill_chunk_size=32)
    assert torch.equal(model.generate(IDS[:, :150], max_new_tokens=30, do_sample=False, **older), made)
    more = torch.cat([made, IDS[:, :20]], 1)  # a second turn on the same cache
    again = model.generate(more, max_new_tokens=10, do_sample=False, cache=cache)
    assert again.shape[1] == 210
    assert cache.get_seq_length() == 209


def padded(lengths, columns):
    mask = torch.tensor([[0] * (columns - n) + [1] * n for n in lengths])
    return IDS[0, :columns].repeat(len(lengths), 1) * mask, mask


def test_pages_count_from_the_first_token_of_each_row(tiny):
    ids, mask = padded([90, 133, 101], 133)
    for model, _ in tiny.values():
        cache = RotatedCache(model.config, "k3v3", attention_mask=mask)
        how = dict(max_new_tokens=40, do_sample=False, return_dict_in_generate=True, output_logits=True)
        made = model.generate(ids, attention_mask=mask, cache=cache, **how)
        logits = torch.stack(made.logits, 1)
        for row, n in enumerate([90, 133, 101]):
            alone = model.generate(ids[row : row + 1, -n:], cache=RotatedCache(model.config, "k3v3"), **how)
            assert_near(logits[row], torch.stack(alone.logits, 1)[0])
        cache = RotatedCache(model.config, "k3v3", attention_mask=mask)  # rows that generate repeats
        twice = model.generate(
            ids, attention_mask=mask, cache=cache, num_beams=2, num_return_sequences=2, max_length=136
        )
        assert cache.batch_size == len(twice) == 6


def test_padding_that_is_not_known_is_refused(tiny):
    model = tiny["llama"][0]
    ids, mask = padded([20, 33], 33)
    with pytest.raises(InputError, match=r"a batch of 2 rows that may have padding: give RotatedCache\(..., att"):
        model.generate(ids, attention_mask=mask, max_new_tokens=2, cache=RotatedCache(model.config))
    with pytest.raises(InputError, match="may have padding"):
        model.generate(ids[:1], attention_mask=mask[:1], max_new_tokens=2, cache=RotatedCache(model.config))
    cache = RotatedCache(model.config)
    with pytest.raises(InputError, match="may have padding"):
        model(ids, attention_mask=mask, cache=cache)
    assert cache.batch_size == -1
    both = IDS[0, :66].view(2, 33)
    model.generate(both, attention_mask=mask * 0 + 1, max_new_tokens=2, cache=RotatedCache(model.config))
    with pytest.raises(InputError, match="row 1 of attention_mask has padding after a token"):
        RotatedCache(model.config, attention_mask=mask.flip(1)[[1, 0]])
    with pytest.raises(InputError, match="row 0 of attention_mask has no token"):
        RotatedCache(model.config, attention_mask=mask * 0)
    with pytest.raises(InputError, match=r"attention_mask is \(33,\)"):
        RotatedCache(model.config, attention_mask=mask[0])
    with pytest.raises(InputError, match="3 rows does not fit a batch of 2"):
        model(ids, cache=RotatedCache(model.config, attention_mask=torch.ones(3, 33)))


@pytest.mark.parametrize("kv", ["fp32", "fp16", "k4v4"])
def test_a_crop_of_up_to_64_tokens_leaves_no_trace(tiny, kv):
    model = tiny["llama"][0]
    base = RotatedCache(model.config, kv)
    run(model, IDS[:, :170], base, [96])
    after = run(model, IDS[:, 170:180], deepcopy(base))
    for tokens in (1, 13, 23, 64):
        cache = deepcopy(base)
        run(model, IDS[:, 300 : 300 + tokens], cache, [tokens // 2] if tokens > 1 else [])
        cache.crop(-tokens)
        assert cache.get_seq_length() == 170
        assert run(model, IDS[:, 170:180], cache).tobytes() == after.tobytes()


def test_a_deeper_crop_is_refused_inside_a_page_of_codes(tiny):
    model = tiny["llama"][0]
    cache = RotatedCache(model.config)
    run(model, IDS[:, :300], cache)
    allowed = "up to 64 tokens from the most that were stored, or to 192 tokens"
    with pytest.raises(InputError, match=f"a crop to 200 tokens cuts page 6, .* {allowed}"):
        cache.crop(-100)
    assert cache.get_seq_length() == 300
    for bad, message in ((1, r"crop\(1\): allowed are numbers up to 0"), (-301, "301 tokens does not fit the 300")):
        with pytest.raises(InputError, match=message):
            cache.crop(bad)
    cache.crop(-108)  # the end of a page
    cache.crop(0)
    fresh = RotatedCache(model.config)
    run(model, IDS[:, :192], fresh)
    got, want = (run(model, IDS[:, 192:200], c) for c in (cache, fresh))
    np.testing.assert_allclose(got, want, atol=1e-4)
    cache.crop(-190)  # inside the leading page, which is exact
    assert cache.get_seq_length() == 10
    halves = RotatedCache(model.config, "fp16")
    run(model, IDS[:, :300], halves)
    halves.crop(-100)  # halves lose nothing
    whole = RotatedCache(model.config, "fp16")
    run(model, IDS[:, :200], whole)
    got, want = (run(model, IDS[:, 200:240], c) for c in (halves, whole))
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_rows_are_reordered_repeated_selected_and_copied(tiny):
    model, (ids, mask) = tiny["llama"][0], padded([60, 99], 99)
    cache, more = RotatedCache(model.config, attention_mask=mask), IDS[:, 200:240].repeat(4, 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)

    def steps(cache, pads):
        """Chunks that cross pages, in every row of the batch."""
        columns, out = cache.get_seq_length(), []
        for low, high in ((0, 7), (7, 40)):
            at = torch.arange(columns + low, columns + high) - torch.tensor(pads)[:, None]
            now = torch.tensor([[c >= p for c in range(columns + high)] for p in pads]).long()
            out.append(model(more[: len(pads), low:high], attention_mask=now, position_ids=at, cache=cache).logits)
        return torch.cat(out, 1)

    model(ids, attention_mask=mask, position_ids=positions, cache=cache)
    want = steps(deepcopy(cache), [39, 0])
    held = cache.bytes()
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    assert cache.bytes() <= held + 100  # shared
    got = steps(cache, [39, 39, 0, 0])
    torch.testing.assert_close(got, want[[0, 0, 1, 1]], atol=1e-4, rtol=0)
    cache.crop(-40)
    cache.reorder_cache(torch.tensor([2, 0, 1, 3]))
    torch.testing.assert_close(steps(deepcopy(cache), [0, 39, 39, 0]), want[[1, 0, 0, 1]], atol=1e-4, rtol=0)
    cache.batch_select_indices(torch.tensor([False, True, False, True]))
    torch.testing.assert_close(steps(cache, [39, 0]), want, atol=1e-4, rtol=0)
    with pytest.raises(InputError, match="a batch of 1 rows does not fit a cache of 2"):
        model(ids[:1], cache=cache)


@pytest.mark.parametrize("how", [dict(num_beams=3), dict(prompt_lookup_num_tokens=5), dict(assistant=True)])
def test_ways_to_generate(tiny, how):
    model = tiny["llama"][0]
    if how.pop("assistant", False):
        how = dict(assistant_model=tiny["gpt2"][0])
    ids = torch.cat([IDS[:, :40]] * 3, 1)
    want = model.generate(ids, max_new_tokens=24, do_sample=False, **how)
    for kv in ("fp32", "k16v16"):
        cache = RotatedCache(model.config, kv)
        assert torch.equal(model.generate(ids, max_new_tokens=24, do_sample=False, cache=cache, **how), want)


def test_bytes_are_measured_and_few():
    import tracemalloc

    config = AutoConfig.for_model("llama", num_hidden_layers=3, num_attention_heads=3, hidden_size=192, head_dim=64)
    k = torch.randn(1, 3, 256, 64)
    RotatedCache(config).update(k, k, 0)  # what Python allocates once
    tracemalloc.start()
    try:
        cache, begin = RotatedCache(config), tracemalloc.get_traced_memory()[0]
        for _ in range(16):
            for layer in range(3):
                cache.update(k, k, layer)
        held = tracemalloc.get_traced_memory()[0] - begin
    finally:
        tracemalloc.stop()
    bases = plain(3, 3, 64).nbytes  # made before the first measurement
    assert abs(held + bases - cache.bytes()) < 0.02 * held  # Python objects
    assert cache.bytes() <= 0.2 * 16 * 3 * 2 * k.nbytes
    cache.reset()
    assert cache.bytes() == bases
    assert cache.get_seq_length() == 0


def test_a_calibrated_cache_of_4096_tokens_takes_less_than_a_fifth_of_floats():
    """In SmolLM2's heads; a calibrated basis has its own numbers for each layer and head, and is counted."""
    shape = layers, heads, d = 12, 3, 64  # pages of exact rows are larger than a slab, as SmolLM2's
    basis = Basis(plain(*shape).array.copy(), "text", np.zeros((*shape[:2], 2, d * (d - 1) // 2), np.float32))
    config = AutoConfig.for_model(
        "llama", num_hidden_layers=layers, num_attention_heads=heads, hidden_size=192, head_dim=d
    )
    cache, rng = RotatedCache(config, calibration=basis), torch.Generator().manual_seed(0)
    for tokens in (4000, 60, 36):
        k = torch.randn(1, heads, tokens, d, generator=rng)
        for layer in range(layers):
            cache.update(k, k, layer)
    dense = 2 * layers * heads * d * 4096 * 4
    assert basis.nbytes > 0.035 * dense
    assert cache.bytes() <= 0.2 * dense


def test_models_that_do_not_fit():
    small = dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=64, head_dim=32)
    with pytest.raises(ConfigError, match="layer 0 of mistral has a sliding window of 16 tokens; allowed is full"):
        RotatedCache(AutoConfig.for_model("mistral", sliding_window=16, num_key_value_heads=1, **small))
    RotatedCache(AutoConfig.for_model("mistral", sliding_window=None, num_key_value_heads=1, **small))
    with pytest.raises(ConfigError, match="gpt2 has cross attention"):
        RotatedCache(AutoConfig.for_model("gpt2", add_cross_attention=True))
    with pytest.raises(InputError, match="head size 20"):
        RotatedCache(AutoConfig.for_model("llama", **small | dict(head_dim=20)))
    config = AutoConfig.for_model("llama", num_key_value_heads=2, **small)
    with pytest.raises(InputError, match="page format 'k5v4'"):
        RotatedCache(config, "k5v4")
    with pytest.raises(InputError, match="calibration 'best' is not one of"):
        RotatedCache(config, calibration="best")
    with pytest.raises(InputError, match="'auto' needs a model that was loaded by name"):
        RotatedCache(config, calibration="auto")
    with pytest.raises(InputError, match="a basis of shape"):
        RotatedCache(config, calibration=plain(1, 2, 32))


def test_tensors_that_do_not_fit(tiny):
    cache = RotatedCache(tiny["llama"][0].config)
    k = torch.zeros(1, 2, 3, 16)
    with pytest.raises(InputError, match=r"keys of shape \(1, 4, 3, 16\) do not fit \(batch, 2, tokens, 16\)"):
        cache.update(k.repeat(1, 2, 1, 1), k, 0)
    with pytest.raises(InputError, match="with gradients"):
        cache.update(k, k.clone().requires_grad_(), 0)
    cache.update(k, k, 0)
    with pytest.raises(InputError, match="layer 1 got 1 tokens in a pass of 3"):
        cache.update(k[:, :, :1], k[:, :, :1], 1)
    with pytest.raises(InputError, match="layer 0 holds 3 tokens and another one 0: a pass was interrupted"):
        cache.update(k, k, 0)
    cache.crop(-3)
    for layer in range(2):
        found = cache.update(k.bfloat16() + 1, k.bfloat16(), layer)[0]
        assert found.dtype == torch.bfloat16
        assert (found == 1).all()


def test_the_keyword_for_a_cache_is_read_off_the_signature(tiny):
    model = tiny["llama"][0]
    assert cache_keyword(model) == cache_keyword(model.generate) == "cache"

    def older(input_ids, past_key_values=None):
        pass

    assert cache_keyword(older) == "past_key_values"
