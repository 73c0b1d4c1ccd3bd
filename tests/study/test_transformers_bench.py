"""Our layers inside transformers as arms."""

import json

import pytest

import helpers
from cachequant.errors import InputError
from cachequant.study import arms, bench, hf_cache_bench, torch_engine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return helpers.checkpoint("llama-gqa-tied", str(tmp_path_factory.mktemp("tiny")))


def test_end_to_end(tiny):
    names = ["transformers-fp32", "hf-int8"]
    found = bench.transformers(tiny, names, prompt=6, new=4, repeats=2, threads=1)
    json.dumps(found, allow_nan=False)
    assert set(found["arms"]) == set(names) and found["missing"] == []
    keys = {"prefill_tok_s", "decode_tok_s", "bytes"}
    assert found["ratios"].keys() == {"hf-int8/transformers-fp32", "transformers-fp32/hf-int8"}
    assert all(ratio.keys() == keys for ratio in found["ratios"].values())
    # layers, keys and values, heads, tokens, values of four bytes
    assert found["arms"]["hf-int8"]["bytes"]["values"] == [2 * 2 * 2 * 6 * 8 * 4.0] * 2
    facts = found["facts"]
    assert facts["hf-int8"]["weight_bytes"] < facts["transformers-fp32"]["weight_bytes"]


def test_a_score_compares_the_caches_among_the_arms(tiny, monkeypatch):
    asked = {}

    def compare(model, arms, **how):
        asked.update(how, arms=arms)
        return {"accuracy": {"arms": {}}}

    monkeypatch.setattr(hf_cache_bench, "compare", compare)
    monkeypatch.setattr(hf_cache_bench, "check", lambda *args, **how: None)
    names = ["transformers-fp32", "hf-kv-fp32", "hf-kv-dynamic/fp32"]
    found = bench.transformers(tiny, names, prompt=6, new=2, repeats=1, threads=1, score=5, windows=3)
    assert found["accuracy"] == {"arms": {}} and found["missing"] == []
    assert asked["arms"] == ["hf-kv-dynamic", "hf-kv-fp32"]
    assert (asked["context"], asked["score"], asked["windows"], asked["text"]) == (6, 5, 3, "enwiki")
    with pytest.raises(InputError, match="a score compares caches.*not only transformers-fp32"):
        bench.transformers(tiny, names[:1], score=5)


def test_bytes_that_a_token_reads(tiny):
    exact = torch_engine.Transformers(tiny, 1).weight_bytes
    layers, both = (torch_engine.Transformers(tiny, 1, scheme=s).weight_bytes for s in ("int8", "int8+head:int8"))
    head, blocks = 131 * 48, 2 * (48 * 48 * 2 + 16 * 48 * 2 + 3 * 80 * 48)
    assert exact - layers == pytest.approx(3 * blocks, rel=0.1)
    assert layers - both == pytest.approx(3 * head, rel=0.1)


def test_arms_by_name():
    assert arms.get("hf-bfp8").name == "hf-bfp8"
    for name, message in (("hf-int9", "hf-SCHEME"), ("hf-fp32", "in float32"), ("hf-int8-smooth", "calibrated")):
        with pytest.raises(InputError, match=f"unknown arm '{name}'.*{message}"):
            arms.get(name)
