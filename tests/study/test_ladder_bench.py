"""The measurements of the kernel chapter at sizes that take a moment: shapes of what they give, not speeds."""

import numpy as np
import pytest

from cachequant import schemes
from cachequant.kernels import get_threads, set_threads, simd
from cachequant.study import ladder_bench


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    monkeypatch.setattr(ladder_bench, "LOOP_SECONDS", 0.0)
    monkeypatch.setattr(ladder_bench, "INTERPRETED", (1, 4, 8))


def test_rungs_go_from_python_to_simd():
    found = ladder_bench.rungs(48, 64, 5, 0, repeats=2)
    names = list(found)
    assert names[:4] == [ladder_bench.PYTHON, ladder_bench.TRIPLE, ladder_bench.BLOCKED, ladder_bench.THREADED]
    assert names[4:] == [ladder_bench.FLOATS, *(ladder_bench.SIMD + s.name for s in reversed(simd.available()))]
    assert all(len(s["values"]) == 2 and s["median"] > 0 for s in found.values())
    assert found[ladder_bench.BLOCKED]["intensity"] == pytest.approx(
        2 * 5 * 48 * 64 / (48 * 64 + 4 * (48 + 5 * 64 + 5 * 48))
    )


def test_a_single_row_has_no_interpreted_rung_and_threads_come_back():
    before = get_threads()
    set_threads(2)
    found = ladder_bench.rungs(48, 64, 1, 10_000, repeats=1)
    assert get_threads() == 2
    set_threads(before)
    assert ladder_bench.PYTHON not in found and ladder_bench.FLOATS in found


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
    turns = ladder_bench.packed_rotation(weight, schemes.INT8, 10_000)
    seen = [next(turns) for _ in range(12)]
    distinct = list({id(m): m for m in seen}.values())
    assert sum(m.nbytes for m in distinct) >= 10_000 > sum(m.nbytes for m in distinct[1:])
