"""Rows of the remedies for int8 inputs: in order, in words, against int8 and against weights alone."""

import pytest

from cachequant import schemes
from cachequant.study import remedies


def scored(kl):
    return {"kl": kl, "intervals": {"kl": {"low": kl, "high": kl}}, "delta_percent": {"value": 100 * kl}}


def data(**kl):
    ratio = {"median": 0.9, "low": 0.8, "high": 1.0}
    ratios = {f"{name}/int8": {"prefill_tok_s": ratio, "decode_tok_s": ratio} for name in kl if name != "int8"}
    return {"schemes": {name: scored(value) for name, value in kl.items()}, "speed": {"ratios": ratios}}


def test_rows_are_those_that_were_scored():
    found = remedies.rows(data(**{"w8": 0.003, "w8a12": 0.004, "int8": 0.023, "bfp8-row": 0.1, "int8-x32": 0.013}), 512)
    assert [r["scheme"] for r in found] == ["int8", "int8-x32", "w8a12", "w8"]
    assert [r["left"] for r in found] == pytest.approx([100, 50, 5, 0])
    assert [r["input_bits"] for r in found] == [8 + 32 / 512, 9, 12 + 32 / 512, 32]
    assert found[0]["prefill"] is None and found[1]["decode"]["median"] == 0.9


def test_without_weights_alone_nothing_is_a_share():
    assert [r["left"] for r in remedies.rows(data(int8=0.02), 512)] == [None]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("w8", "float32"),
        ("int8", "8 bits, one scale a row"),
        ("w8a12", "12 bits, one scale a row"),
        ("bfp8", "8 bits, one power of two a block of 32"),
        ("int8-x64", "8 bits, one scale a block of 64"),
        ("int8-hadamard", "rotated, 8 bits, one scale a row"),
        ("int8-smooth", "smoothed, 8 bits, one scale a row"),
    ],
)
def test_inputs_in_words(name, words):
    assert remedies.inputs(schemes.get(name)) == words


def test_every_remedy_is_a_scheme():
    assert set(remedies.ORDER) <= set(schemes.PRESETS)
