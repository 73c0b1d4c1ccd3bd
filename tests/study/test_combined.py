"""Both optimizations at once on a tiny model: gains are ratios within a round, and no bit changes with reuse."""

import numpy as np
import pytest

from cachequant.errors import InputError
from cachequant.study import combined, combined_rows
from cachequant.study.results import Result
from helpers import random_model

MODEL = random_model(head_dim=16)
NAMES = ["fp32", "int8", "fp32/k4v4", "int8/k4v4"]


@pytest.fixture(scope="module")
def found():
    return combined.measure(MODEL, NAMES, "high_reuse", new=2, repeats=2)


def test_every_variant_with_and_without_a_cache(found):
    assert list(found["arms"]) == [f"{name} {arm}" for name in NAMES for arm in ("cache", "no-cache")]
    assert all(len(cell["values"]) == 2 for row in found["arms"].values() for cell in row.values())
    assert (found["identical"], found["requests"], found["missing"]) == (True, 5, [])
    assert found["agreed"].keys() == set(NAMES) and found["agreed"]["fp32"] == 10
    assert len(set(found["hit_rate"].values())) == 1 and 0.5 < found["hit_rate"]["int8"] < 0.8


def test_parts_are_those_in_which_a_variant_differs(found):
    parts = {name: list(gains["request_speed"]["parts"]) for name, gains in found["together"].items()}
    assert parts == {
        "int8": ["scheme", "cache"], "fp32/k4v4": ["pages", "cache"], "int8/k4v4": ["scheme", "pages", "cache"],
    }  # fmt: skip


def cell(*values):
    return {"first_speed": {"values": values}, "decode_tok_s": {"values": values}, "request_speed": {"values": values}}


def test_what_is_kept_is_the_joint_gain_over_the_product():
    arms = {
        "fp32 no-cache": cell(1, 2),
        "fp32 cache": cell(2, 4),
        "int8 no-cache": cell(3, 6),
        "int8 cache": cell(3, 6),
    }
    gains = combined.together({"arms": arms}, "int8")["first_speed"]
    assert [gains[k]["median"] for k in ("product", "joint", "kept")] == [6, 3, 0.5]
    assert gains["parts"]["scheme"] == {"median": 3, "low": 3, "high": 3}


def test_a_variant_without_its_parts_is_refused():
    with pytest.raises(InputError, match="'int8/k4v4' can only be judged beside 'fp32/k4v4', which is not named"):
        combined.check(["fp32", "int8", "int8/k4v4"], "high_reuse", 2)


def test_a_scheme_that_no_cache_takes_is_refused():
    with pytest.raises(InputError, match="int8-tensor"):
        combined.check(["fp32", "int8-tensor"], "high_reuse", 2)


@pytest.mark.parametrize(
    ("names", "prompts", "new"), [(["int8"], "high_reuse", 2), (NAMES, "multi_turn", 2), (NAMES, "high_reuse", 1)]
)
def test_what_cannot_be_measured_is_refused(names, prompts, new):
    with pytest.raises(InputError, match="at least 2 new tokens"):
        combined.measure(MODEL, names, prompts, new, 1)


def test_a_cache_that_changes_bits_is_told(monkeypatch):
    start = combined.Reusing.start
    monkeypatch.setattr(combined.Reusing, "start", lambda self, ids: start(self, ids) + np.float32(0))
    assert combined.measure(MODEL, ["fp32"], "no_reuse", 2, 1)["identical"]

    def wrong(self, ids):
        self.first = start(self, ids) + np.float32(1e-3)
        return self.first

    monkeypatch.setattr(combined.Reusing, "start", wrong)
    assert not combined.measure(MODEL, ["fp32"], "no_reuse", 2, 1)["identical"]


def test_rows(found):
    result = Result("09_combined", "local", {}, {}, {"sets": {"high_reuse": found}})
    speeds = combined_rows.speeds(result)
    assert [r["reuse"] for r in speeds[:2]] == ["yes", "no"]
    assert all(r["first"]["low"] <= r["first"]["median"] <= r["first"]["high"] < r["request"]["high"] for r in speeds)
    gains = combined_rows.gains(result, "first_speed")
    assert (gains[0]["pages"], gains[0]["scheme"] is None) == (None, False)
    assert [r["variant"] for r in combined_rows.reuse_gains(result)] == NAMES


@pytest.mark.parametrize(
    ("low", "high", "words"), [(0.7, 0.9, "less than"), (1.1, 1.2, "more than"), (0.9, 1.1, "within the noise")]
)
def test_independence_in_words(low, high, words):
    assert words in combined_rows.independence({"median": 1, "low": low, "high": high})


def test_rows_of_cut_prompts():
    rows = [
        {"engine": "cachequant", "scheme": "int8", "split": "9+2", "differences": [0.0, 0.0]},
        {"engine": "transformers", "products": "float32", "scheme": "int8", "split": "9+2", "differences": [0.5, 1e-5]},
    ]
    rows = [r | {"median": 0, "largest": max(r["differences"]), "greedy_changes": 1, "prompts": 2} for r in rows]
    found = combined_rows.chunks(Result("09_combined", "local", {}, {}, {"chunks": rows}))
    assert [(r["engine"], r["above"], r["changes"]) for r in found] == [
        ("this decoder", "0 of 2", "1 of 2"), ("transformers", "1 of 2", "1 of 2"),
    ]  # fmt: skip
