"""Measuring what `auto` may stand for, with timings that are made up."""

import dataclasses
import json

import pytest

import cachequant
from cachequant import schemes, tuning
from cachequant.errors import InputError
from cachequant.kernels import selfcheck, simd
from cachequant.study import scheme_speed, tune
from helpers import random_model

asset = random_model()._asset


@pytest.fixture
def measured(monkeypatch):
    """Seconds by arm that a fake measurement uses: {arm: (prefill tok/s, decode tok/s)}, others have 100 and 10."""
    speeds, seen = {}, []

    def interleaved(engines, ids, new, repeats, progress):
        seen.append({name: engine._model for name, engine in engines.items()})
        found = {}
        for name in engines:
            prefill, decode = speeds.get(name, (100.0, 10.0))
            found[name] = {"prefill_tok_s": [prefill + r for r in range(repeats)], "decode_tok_s": [decode] * repeats}
        return found

    monkeypatch.setattr(scheme_speed, "interleaved", interleaved)
    speeds["seen"] = seen
    return speeds


def another():
    return next(s for s in schemes.FAITHFUL if s != tuning.by_table().scheme)


def test_ties_go_to_the_table(measured):
    found = tune.tune(asset, 5)
    assert found["choice"]["scheme"] == found["choice"]["table"] == tuning.by_table().scheme
    assert set(schemes.FAITHFUL) <= found["arms"].keys()
    assert found["missing"] == []
    json.dumps(found, allow_nan=False)
    for ratio in found["ratios"].values():
        assert ratio["speed"] == {"median": 1.0, "low": 1.0, "high": 1.0}


def test_the_fastest_request_wins_and_the_phases_are_weighed(measured):
    table = tuning.by_table().scheme
    measured[another()] = (100.0, 20.0)
    assert tune.tune(asset, 5)["choice"]["scheme"] == another()
    measured[table] = (1e6, 10.0)  # a prompt for nothing, but the answer takes longer
    found = tune.tune(asset, 5)
    assert found["choice"]["scheme"] == another()
    prompt = min(tune.PROMPT, asset.config.context - tune.NEW)
    assert found["arms"][another()]["speed"]["values"][0] == pytest.approx(1 / (prompt / 100 + tune.ANSWER / 20))


def test_other_kernel_sets_are_notes_and_never_chosen(measured):
    model_sets = {}
    for name in (tuning.PAIRS, tuning.FOURS):
        for kernel_set in tune._other_sets(schemes.get(name)):
            measured[f"{name}@{kernel_set}"] = (1000.0, 1000.0)
            model_sets[f"{name}@{kernel_set}"] = kernel_set
    found = tune.tune(asset, 5)
    assert found["choice"]["scheme"] == tuning.by_table().scheme
    (models,) = measured["seen"]
    for arm, kernel_set in model_sets.items():
        assert models[arm].kernel_set == kernel_set
        assert found["kernels"][arm.partition("@")[0]][kernel_set]["median"] > 1
    for name in schemes.FAITHFUL:
        wide = schemes.get(name).activation is not None and schemes.get(name).activation.bits > 8
        assert models[name].kernel_set == selfcheck.active(wide).name
        assert models[name].scheme.head == schemes.HEADS[schemes.DEFAULT_HEAD]


def test_nothing_is_left_in_the_environment(measured, monkeypatch):
    monkeypatch.delenv("CACHEQUANT_KERNELS", raising=False)
    tune.tune(asset, 5)
    assert "CACHEQUANT_KERNELS" not in tune.os.environ
    monkeypatch.setenv("CACHEQUANT_KERNELS", "portable")
    assert tune.tune(asset, 5)["kernels"] == {}
    assert simd.available()[0].name == "portable"


def test_what_cannot_be_rotated_is_missing(measured, monkeypatch):
    monkeypatch.setattr(tuning, "by_table", lambda: tuning.Choice("w8a12", "table", "made up"))
    odd = random_model(width=30, heads=3, kv_heads=3, head_dim=10, ffn=49)._asset
    found = tune.tune(odd, 5)
    assert set(found["missing"]) == {"int8-hadamard", "int8-hadamard-x128"}
    assert "49 values" in found["provenance"]["missing"]["int8-hadamard"] or "30" in str(found["provenance"]["missing"])
    monkeypatch.setattr(tuning, "by_table", lambda: tuning.Choice("int8-hadamard", "table", "made up"))
    with pytest.raises(InputError, match="cannot be run as 'int8-hadamard'"):
        tune.tune(odd, 5)


def test_bad_input_comes_before_anything_runs(measured):
    with pytest.raises(InputError, match="repeats 4.*at least 5"):
        tune.tune(asset, 4)
    with pytest.raises(InputError, match="quantized as 'int8'.*allowed is a float32 model"):
        tune.tune(dataclasses.replace(asset, scheme=schemes.get("int8")), 5)
    with pytest.raises(InputError, match="context of 20 tokens; at least 25"):
        tune.tune(random_model(context=20)._asset, 5)
    assert measured["seen"] == []


def test_a_real_measurement_runs(monkeypatch):
    monkeypatch.setattr(tune, "NEW", 3)
    done = []
    found = tune.tune(asset, 5, progress=lambda *given: done.append(given))
    assert all(len(arm["speed"]["values"]) == 5 for arm in found["arms"].values())
    assert found["choice"]["scheme"] in schemes.FAITHFUL
    assert found["provenance"]["workload"]["repeats"] == 5
    assert found["provenance"]["machine"]["cachequant"] == cachequant.__version__
    assert done[-1][0] == done[-1][1]
