"""attach: attention that reads the codes, under the rule of our decoder whatever the calls."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transformers import (  # noqa: E402  # noqa: E402
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    StaticCache,
)

from cachequant.errors import ConfigError, InputError  # noqa: E402
from cachequant.hf import RotatedCache, attach, detach  # noqa: E402
from cachequant.hf.cache import PASSES  # noqa: E402
from cachequant.kv.attention import Attention  # noqa: E402
from cachequant.kv.basis import Basis, plain  # noqa: E402
from helpers import assert_near  # noqa: E402

IDS = torch.randint(0, 131, (1, 400), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def attached(tiny):
    """attach for a tiny model by name, undone at the end."""
    used = []

    def make(name, kv="k4v4", calibration="none"):
        model, load = tiny[name]
        attach(model, kv, calibration)
        used.append(model)
        return model, load

    yield make
    for model in used:
        detach(model)


def ours(load, kv, ids):
    with load(kv, "none").session() as session:
        return session.extend(ids[0].numpy(), logits="all")


@pytest.mark.parametrize("kv", ["fp32", "fp16", "int8", "k4v4", "k3v2", "k4v4,1:k8v16", "k4v3+exact2"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_logits_are_those_of_the_decoder_however_calls_are_cut(attached, name, kv):
    model, load = attached(name, kv)
    want = ours(load, kv, IDS[:, :333])
    assert_near(model(IDS[:, :333]).logits[0], want)
    cache, parts = None, []
    for low, high in ((0, 45), (45, 46), (46, 180), (180, 181), (181, 333)):
        out = model(IDS[:, low:high], cache=cache)
        cache = out.cache
        parts.append(out.logits)
    assert cache.kv.name == kv
    assert_near(torch.cat(parts, 1)[0], want)


@pytest.mark.parametrize("kv", ["fp32", "fp16", "k4v3", "k2v8"])
def test_bits_are_those_of_attention_over_pages(kv):
    config = AutoConfig.for_model(
        "llama", num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=64, head_dim=16
    )
    layer, cache = Attention(4, 2, 16, kv=kv), RotatedCache(config, kv)
    q, k, v = (torch.randn(1, heads, 210, 16) for heads in (4, 2, 2))
    token = PASSES.set((cache,))
    try:
        for low, high in ((0, 100), (100, 101), (101, 140), (140, 210)):
            layer.append(*(x[0, :, low:high].transpose(0, 1).numpy() for x in (k, v)))
            want = layer.attend(q[0, :, low:high].transpose(0, 1).numpy())
            for index in range(2):  # the scratch of one layer must not be another's
                cache.update(k[:, :, low:high], v[:, :, low:high], index)
                got = cache.attend(index, q[:, :, low:high], 16**-0.5)
                assert got[0].numpy().tobytes() == want.tobytes()
    finally:
        PASSES.reset(token)


def test_a_crop_leaves_no_trace(attached):
    model = attached("llama", "k4v3")[0]
    base = model(IDS[:, :170]).cache
    after = model(IDS[:, 170:230], cache=deepcopy(base)).logits
    for tokens in (5, 40, 64):
        cache = model(IDS[:, 300 : 300 + tokens], cache=deepcopy(base)).cache
        cache.crop(-tokens)
        assert torch.equal(model(IDS[:, 170:230], cache=cache).logits, after)


def test_generate_gives_the_tokens_of_the_decoder(attached):
    model, load = attached("llama")
    want = load("k4v4", "none").generate(IDS[0, :150].tolist(), 40).ids
    for more in (dict(), dict(prefill_chunk_size=40), dict(prompt_lookup_num_tokens=7)):
        how = dict(max_new_tokens=40, do_sample=False, return_dict_in_generate=True)
        out = model.generate(IDS[:, :150], **how, **more)
        assert isinstance(out.cache, RotatedCache)
        assert out.sequences[0, 150:].tolist() == want


def test_padding_is_read_from_the_mask(attached):
    model, load = attached("llama", "k3v3")
    lengths, columns = [90, 133, 101], 133
    mask = torch.tensor([[0] * (columns - n) + [1] * n for n in lengths])
    ids = IDS[0, :columns].repeat(3, 1) * mask
    how = dict(max_new_tokens=30, do_sample=False, return_dict_in_generate=True, output_logits=True)
    for more in (dict(), dict(prefill_chunk_size=20)):
        made = model.generate(ids, attention_mask=mask, **how, **more)
        for row, n in enumerate(lengths):
            tokens = torch.cat([ids[row, -n:], made.sequences[row, columns:]])[None]
            want = ours(load, "k3v3", tokens)[n - 1 : -1]
            assert_near(torch.stack(made.logits, 1)[row], want)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    out = model(ids, attention_mask=mask, position_ids=positions)
    assert_near(out.logits[0, -90:], ours(load, "k3v3", ids[:1, -90:]))
    with pytest.raises(InputError, match=r"padding \[43, 0, 0\], but the cache was filled with \[43, 0, 32\]"):
        wrong = torch.cat([mask[[0, 1, 1]], mask[:, -1:]], 1)
        model(ids[:, :1], attention_mask=wrong, cache=out.cache)
    with pytest.raises(InputError, match=r"no attention_mask, but the cache was filled with padding \[43, 0, 32\]"):
        model(ids[:, :1], cache=out.cache)
    model(ids[:, :1], attention_mask=torch.cat([mask, mask[:, -1:]], 1), cache=out.cache)


def test_beams_share_pages_and_agree_with_exact_ones(attached):
    model = attached("gpt2", "k16v16")[0]
    how = dict(max_new_tokens=30, do_sample=False, num_beams=4, num_return_sequences=2)
    made = model.generate(IDS[:, :70], **how)
    with_mask = torch.cat([torch.zeros(1, 5), torch.ones(1, 70)], 1)
    padded = model.generate(torch.cat([IDS[:, :5] * 0, IDS[:, :70]], 1), attention_mask=with_mask, **how)
    detach(model)
    want = model.generate(IDS[:, :70], **how)
    attach(model, "k16v16")
    assert torch.equal(made, want)
    assert torch.equal(padded[:, 75:], want[:, 70:])


def test_threads_run_an_attached_model_at_once(attached):
    model = attached("llama")[0]
    want = model(IDS[:, :333]).logits

    def go(_):
        with torch.no_grad():
            return [torch.equal(model(IDS[:, :333]).logits, want) for _ in range(4)]

    with ThreadPoolExecutor(3) as pool:
        assert all(all(same) for same in pool.map(go, range(3)))


def test_a_basis_is_used(attached):
    rng, d = np.random.default_rng(3), 16
    basis = Basis(plain(2, 2, d).array.copy(), "shifted")
    basis.array[:, :, :, 0] = rng.standard_normal((2, 2, 2, d))
    model, load = attached("llama", "k2v2", basis)
    from cachequant.decoder.model import Model
    from cachequant.kv.coding import coding

    plain_model = load("k2v2", "none")
    shifted = Model(plain_model._asset, plain_model._decoder, coding("k2v2", 2, 2, d, basis))
    with shifted.session() as session:
        want = session.extend(IDS[0, :200].numpy(), logits="all")
    got = model(IDS[:, :200]).logits[0]
    assert_near(got, want)
    assert np.abs(ours(load, "k2v2", IDS[:, :200]) - want).max() > 0.1


def test_other_caches_and_no_cache_work_as_before(attached, tiny):
    model = tiny["llama"][0]
    ids, mask = IDS[:, :80].repeat(2, 1), torch.ones(2, 80)
    mask[1, :9] = 0
    want = model(ids, attention_mask=mask).logits
    attached("llama")
    torch.testing.assert_close(model(ids, attention_mask=mask, use_cache=False).logits, want)
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=100)):
        torch.testing.assert_close(model(ids, attention_mask=mask, cache=cache).logits, want)
        assert cache.get_seq_length() == 80
    chosen = DynamicCache(config=model.config)
    out = model.generate(IDS[:, :40], cache=chosen, max_new_tokens=4, return_dict_in_generate=True)
    assert out.cache is chosen
    own = RotatedCache(model.config, "k8v8")
    model.generate(IDS[:, :40], cache=own, max_new_tokens=4)
    assert own.get_seq_length() == 43


def test_what_the_kernel_does_not_know_is_refused(attached):
    model = attached("llama")[0]
    with pytest.raises(InputError, match="a mask of its own"):
        model(IDS[:, :4], attention_mask=torch.ones(1, 1, 4, 4, dtype=torch.bool))
    assert not PASSES.get()
    with pytest.raises(InputError, match="output_attentions"):
        model(IDS[:, :4], output_attentions=True)
    with pytest.raises(InputError, match="padding after a token"):
        model(IDS[:, :4], attention_mask=torch.tensor([[1, 0, 1, 1]]))
    with torch.enable_grad(), pytest.raises(InputError, match="with gradients"):
        model(IDS[:, :4])
    with pytest.raises(InputError, match="attached already"):
        attach(model)


def test_detach_leaves_nothing_behind(tiny):
    model = tiny["gpt2"][0]
    before, parts = model.config._attn_implementation, dict(model.__dict__)
    want = model(IDS[:, :50]).logits
    attach(model, "k2v2")
    assert (model(IDS[:, :50]).logits != want).any()
    detach(model)
    assert model.config._attn_implementation == before
    assert model.__dict__ == parts
    assert not model.base_model._forward_hooks
    assert not model.base_model._forward_pre_hooks
    out = model(IDS[:, :50])
    assert torch.equal(out.logits, want)
    assert isinstance(out.cache, DynamicCache)
    with pytest.raises(InputError, match="not attached"):
        detach(model)
    assert "cachequant" in AttentionInterface._global_mapping
    assert "cachequant" in AttentionMaskInterface._global_mapping


def test_models_that_do_not_fit():
    shape = dict(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, hidden_size=32, head_dim=16)
    config = AutoConfig.for_model("mistral", sliding_window=8, intermediate_size=32, vocab_size=20, **shape)
    with pytest.raises(ConfigError, match="sliding window of 8"):
        attach(AutoModelForCausalLM.from_config(config))
