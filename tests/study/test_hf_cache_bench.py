"""Caches behind one transformers model: what is scored has read them, and everything else is the same."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import helpers  # noqa: E402
from cachequant import kernels  # noqa: E402
from cachequant.errors import InputError  # noqa: E402
from cachequant.study import hf_cache_bench  # noqa: E402
from cachequant.study.hf_cache_arms import BACKENDS, DYNAMIC, kind  # noqa: E402
from cachequant.study.hf_cache_work import OVER_CODES, CacheWork, exact_rows  # noqa: E402

FOUR, TWO = "hf-kv-k4v4/fp32/none", "hf-kv-k2v2/fp32/none"


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tiny model with bytes as tokens, and a text for it."""
    from tokenizers import Tokenizer as Library

    place = tmp_path_factory.mktemp("words")
    changes = dict(vocab_size=264, max_position_embeddings=200)
    helpers.transformers_model("llama-wide-heads", **changes).save_pretrained(place)
    Library.from_str(helpers.byte_level()).save(str(place / "tokenizer.json"))
    (place / "text").write_text("The quick brown fox jumps over the lazy dog. " * 12)
    return str(place)


@pytest.fixture
def threads():
    before = torch.get_num_threads(), kernels.get_threads()
    yield 1
    torch.set_num_threads(before[0])
    kernels.set_threads(before[1])


def test_pieces_of_a_page_are_what_single_steps_compute(words, threads):
    work, ids = CacheWork(words, threads, [DYNAMIC, FOUR]), np.random.default_rng(0).integers(0, 260, 64 + 41).tolist()
    pieces = work.window(ids, 64)["arms"]
    cache = work._filled(FOUR, ids[:64], work._forward(ids[:64], kind(DYNAMIC).make(None), last=True)[1])[0]
    with work._reading(FOUR):
        logits = np.concatenate([work._forward([token], cache)[0] for token in ids[64:-1]])
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.tensor(ids[65:]), reduction="none")
    assert pieces[FOUR]["nll"] == pytest.approx(loss.tolist(), abs=1e-4)
    assert max(pieces[DYNAMIC]["kl"]) == 0 < min(pieces[FOUR]["kl"])
    assert list(pieces) == [DYNAMIC, FOUR, FOUR + OVER_CODES]
    assert pieces[FOUR]["code_bits"] == 4 + 16 / 32 < pieces[FOUR]["bits"]
    # the leading page and the token's own one up to itself
    assert pieces[FOUR]["exact"] == np.mean([32 + 1 + i % 32 for i in range(40)])
    assert pieces[DYNAMIC]["exact"] == np.mean([65 + i for i in range(40)])


def test_more_bits_are_nearer_and_missing_packages_are_named(words, tmp_path):
    arms = [DYNAMIC, FOUR, TWO, *BACKENDS]
    how = dict(context=64, score=20, windows=2, repeats=2, text=f"{words}/text", threads=1)
    found = hf_cache_bench.compare(words, arms, **how)
    json.dumps(found, allow_nan=False)
    lacking = [name for name, (_, module, *_) in BACKENDS.items() if find_spec(module) is None]
    assert found["missing"] == lacking
    assert all("not installed (make peers)" in found["provenance"]["missing"][name] for name in lacking)
    accuracy = found["accuracy"]
    assert (accuracy["tokens"], accuracy["against"]) == (40, DYNAMIC)
    four, two = (accuracy["arms"][name]["kl"]["value"] for name in (FOUR, TWO))
    assert 0 < four < two
    difference = accuracy["differences"][f"{TWO}/{FOUR}"]
    assert difference["value"] == pytest.approx(two - four) and difference["low"] <= difference["value"]
    assert len(found["arms"][FOUR]["decode_tok_s"]["values"]) == 2
    assert f"{FOUR}/{DYNAMIC}" in found["ratios"]


def test_exact_tokens_of_a_quantized_cache_are_those_that_it_has_not_quantized():
    class Cache:
        layers = [type("Layer", (), {"keys": torch.zeros(1, 2, 5, 8)})]

        def get_seq_length(self):
            return 69

    backend = kind(next(iter(BACKENDS)))
    assert exact_rows(backend, Cache(), 3) == [6, 7, 8]
    Cache.layers[0].keys = torch.tensor([])
    assert exact_rows(backend, Cache(), 2) == [1, 2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"arms": [FOUR]}, "hf-kv-dynamic, so it has to be the first arm"),
        ({"arms": [DYNAMIC, "hf-kv-k5v5"]}, "unknown arm 'hf-kv-k5v5'"),
        ({"context": 65}, "context 65 has to be a multiple of 32"),
        ({"score": 0}, "scored tokens 0"),
        ({"score": 180}, "64 . 180 scored tokens do not fit"),
        ({"windows": 99}, "fewer than 99 windows of 85"),
        ({"text": "nothing"}, "nothing"),
    ],
)
def test_refused_before_anything_runs(words, wrong, message, monkeypatch):
    monkeypatch.setattr(hf_cache_bench, "Worker", None)
    how = dict(arms=[DYNAMIC, FOUR], context=64, score=20, windows=2, text=f"{words}/text")
    with pytest.raises(InputError, match=message):
        hf_cache_bench.compare(words, **(how | wrong))
