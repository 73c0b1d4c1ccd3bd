"""The object that benchmarks print."""

import json

import pytest

from cachequant.study import comparison


def test_arms_ratios_and_missing_by_hand():
    found = comparison.assemble(
        {
            "a": {"speed": [2.0, 4.0, 8.0], "note": [1.0, 1.0, 1.0]},
            "b": {"speed": [1.0, 2.0, 2.0]},
            "c": {"speed": []},
            "slow": {"speed": [0.5]},
        },
        ("speed",),
        {"d": "not installed"},
        {"threads": 2},
        partial={"slow": "stopped"},
    )
    json.dumps(found, allow_nan=False)
    assert set(found["arms"]) == {"a", "b", "slow"}
    assert found["arms"]["a"]["speed"]["median"] == 4.0
    assert found["arms"]["a"]["speed"]["values"] == [2.0, 4.0, 8.0]
    assert set(found["ratios"]) == {"a/b", "b/a", "a/slow", "slow/a", "b/slow", "slow/b"}
    assert found["ratios"]["a/b"] == {"speed": {"median": 2.0, "low": 2.0, "high": 4.0}}
    assert found["ratios"]["slow/a"]["speed"]["median"] == pytest.approx(0.25)  # the first round of both
    assert found["missing"] == ["d", "c"]
    assert found["provenance"] == {
        "threads": 2,
        "missing": {"d": "not installed", "c": "no repetition was finished"},
    }
    assert found["partial"] == {"slow": "stopped"}
