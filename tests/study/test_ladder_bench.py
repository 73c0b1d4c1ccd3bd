"""The measurements of the kernel chapter at sizes that take a moment: shapes of what they give, not speeds."""

import numpy as np
import pytest

from cachequant import schemes
from cachequant.study import ladder_bench


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    monkeypatch.setattr(ladder_bench, "LOOP_SECONDS", 0.0)
    monkeypatch.setattr(ladder_bench, "INTERPRETED", (1, 4, 8))


def test_rungs_go_from_python_to_simd():
    found = ladder_bench.rungs(48, 64, 5, 0, repeats=2)
    assert [name.split()[0] for name in found] == ["triple", "triple", "blocked,", "SIMD,"]
    assert all(len(s["values"]) == 2 and s["median"] > 0 for s in found.values())


def test_stages_add_up_to_the_whole():
    found = ladder_bench.stages(48, 64, 3, ["int8", "bfp8"], 0, repeats=1)
    assert list(found) == ["blocked", "int8", "bfp8"]
    assert list(found["blocked"]) == ["quantize", "multiply", "rescale"]
    assert all(seconds >= 0 for row in found.values() for seconds in row.values())


def test_placement_counts_every_byte():
    found = ladder_bench.placement(48, 64, [1, 8], ["fp32", "int8"], 0, repeats=1)
    at = {(p["arm"], p["tokens"]): p for p in found}
    assert at["fp32", 1]["intensity"] == pytest.approx(2 * 48 * 64 / (4 * (48 * 64 + 64 + 48)))
    assert at["int8", 8]["intensity"] > 2 * at["fp32", 8]["intensity"]


def test_rotation_takes_the_bytes_asked_for():
    weight = ladder_bench._normal(np.random.default_rng(0), 32, 64)
    turns = ladder_bench.rotation(weight, schemes.INT8, 10_000)
    seen = [next(turns) for _ in range(12)]
    distinct = list({id(m): m for m in seen}.values())
    assert sum(m.nbytes for m in distinct) >= 10_000 > sum(m.nbytes for m in distinct[1:])
