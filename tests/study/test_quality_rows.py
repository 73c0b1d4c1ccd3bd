"""Rows of the quality chapter, and speeds of schemes side by side."""

import pytest

import cachequant as cq
from cachequant import schemes
from cachequant.errors import InputError
from cachequant.quantize import quantize
from cachequant.study import causes, quality_rows, scheme_speed
from helpers import checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return cq.load(checkpoint("llama-gqa-tied", str(tmp_path_factory.mktemp("rows"))))


def evaluation(names):
    sums = {"scored": [7, 7], "nll": [21.0, 22.0]}
    errors = ("kl", "top1", "top5", "centred_error", "mean_error", "max_error")
    return {"schemes": {"fp32": sums, **{n: sums | {key: [1.0, 2.0] for key in errors} for n in names}}}


def test_rows_say_what_a_scheme_is(model):
    rows = quality_rows.of(evaluation(["bfp8", "w8", "row-snap4"]), model.config)
    assert rows["fp32"]["bits"] == 32
    assert (rows["bfp8"]["granularity"], rows["bfp8"]["rule"]) == ("block32", "pow2")
    assert rows["w8"]["weights_only"] and not rows["bfp8"]["weights_only"]
    assert rows["row-snap4"]["rule"] == "snap4"
    assert rows["w8"]["delta_percent"]["value"] == 0


@pytest.mark.parametrize("name", ["int8", "bfp8", "int8-block32", "int8-tensor", "block16-snap2"])
def test_bits_are_those_of_the_stored_codes_and_scales(model, name):
    weights = [model._asset.weights[f"{n}.weight"] for n in model.config.linear_names()]
    stored = sum(quantize(w, schemes.get(name).weight).nbytes for w in weights)
    assert quality_rows.bits(name, model.config) == pytest.approx(8 * stored / sum(w.size for w in weights))


def test_grid_cells_that_are_presets_are_scored_once():
    names = quality_rows.grid_names([cell.rpartition("-")[0] for cell in schemes.grid()])
    assert len(names) == len(set(names.values())) == 35
    assert {"row-exact": "int8", "block32-pow2": "bfp8", "tensor-exact": "int8-tensor"}.items() <= names.items()
    assert set(quality_rows.TWO_BY_TWO) <= set(names.values())
    assert all(schemes.get(name).weight == schemes.grid()[cell].weight for cell, name in names.items())


def test_grid_can_be_smaller_but_not_unknown():
    assert len(quality_rows.grid_names(["block16"])) == 15
    with pytest.raises(InputError, match="'block8'; allowed: tensor, row"):
        quality_rows.grid_names(["row", "block8"])


@pytest.mark.parametrize(("tokens", "same"), [([1, 2, 3], 3), ([1, 5, 3], 1), ([9, 2, 3], 0)])
def test_agreed_counts_to_the_first_difference(tokens, same):
    assert quality_rows.agreed(tokens, [1, 2, 3]) == same


def test_causes_rows_keep_labels():
    summaries = {name: {"kl": 0.1} for name in (*causes.PARTS, "fp32")}
    rows = causes.rows(summaries)
    assert list(rows) == list(causes.PARTS)
    assert rows["weights-int8"]["weights"] and not rows["mixed"]["weights"]


def test_speeds_of_schemes_are_paired_with_fp32(model):
    found = scheme_speed.measure(model, ["fp32", "int8"], 8, 3, 2)
    assert len(found["arms"]["int8"]["decode_tok_s"]["values"]) == 2
    assert {"int8/fp32", "fp32/int8"} == found["ratios"].keys()
    assert 0 < found["weight_bytes"]["int8"] < found["weight_bytes"]["fp32"]
