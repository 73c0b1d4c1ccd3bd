"""Our layers inside transformers as arms."""

import json

import pytest

import helpers
from cachequant.errors import InputError
from cachequant.study import arms, bench, torch_engine


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


def test_predictions_behind_a_text_are_compared(tmp_path, monkeypatch):
    """Codes of 4 bits are nearer to floats than those of 2."""
    from tokenizers import Tokenizer as Library

    monkeypatch.setitem(
        helpers.TINY, "words", helpers.TINY["llama-wide-heads"] | dict(vocab_size=264, max_position_embeddings=160)
    )
    folder = helpers.checkpoint("words", str(tmp_path))
    Library.from_str(helpers.byte_level()).save(f"{folder}/tokenizer.json")
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 9)
    names = ["hf-kv-dynamic/fp32", "hf-kv-k4v4/fp32", "hf-kv-k2v2/fp32"]
    how = dict(prompt=100, new=2, repeats=1, threads=1, score=20, text=str(tmp_path / "text"))
    measured = bench.transformers(folder, names, **how)
    assert measured["provenance"]["missing"] == {}
    found = measured["accuracy"]
    assert (found["against"], found["context"], found["tokens"]) == (names[0], 100, 20)
    four, two = (found["arms"][name]["kl"] for name in names[1:])
    assert 0 < four < two
    for wrong, message in (({"score": 61}, "100 . 61 scored tokens do not fit"), ({"text": "nothing"}, "nothing")):
        with pytest.raises(InputError, match=message):
            bench.transformers(folder, names, **(how | wrong))


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
