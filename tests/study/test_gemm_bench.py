"""Matrix products as arms: right results, and the benchmark end to end on small shapes."""

import json

import numpy as np
import pytest

from cachequant.errors import InputError
from cachequant.study import bench, gemm_arms, gemm_bench


@pytest.mark.parametrize("name,limit", [("fp32", 1e-5), ("torch-fp32", 1e-5), ("int8", 0.03), ("w8", 0.02)])
def test_arms_multiply(rng, name, limit):
    arm = gemm_arms.get(name)(1)
    weight, x = rng.normal(0, 1, (40, 64)).astype(np.float32), rng.normal(0, 1, (7, 64)).astype(np.float32)
    product = arm.product(weight)
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    error = np.abs(np.asarray(product.call(arm.inputs(x))) - exact).mean() / np.abs(exact).mean()
    assert error < limit
    assert product.nbytes == pytest.approx(weight.nbytes / (4 if "8" in name else 1), rel=0.3)


def test_torch_int8_multiplies(rng):
    arm = gemm_arms.get("torch-int8")(1)
    weight, x = rng.normal(0, 1, (40, 64)).astype(np.float32), rng.normal(0, 1, (7, 64)).astype(np.float32)
    found = np.asarray(arm.product(weight).call(arm.inputs(x)))
    assert found.dtype == np.float32
    assert np.abs(found - x @ weight.T).mean() / np.abs(x @ weight.T).mean() < 0.05


def test_work_streams_more_than_it_was_told():
    work = gemm_arms.GemmWork("int8", 1, [(32, 32), (16, 64)], rows=3, stream_bytes=50_000)
    facts = work.facts()
    assert len(facts["bytes"]) == 2 and facts["copies"] * sum(facts["bytes"]) >= 50_000
    for what in (work.multiply, work.stream, work.hot):
        seconds = what()["seconds"]
        assert len(seconds) == 2 and min(seconds) > 0


@pytest.mark.parametrize("name,message", [("nope", "torch-fp32, torch-int8"), ("int8+head", "have none: 'int8'")])
def test_bad_arms_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        bench.gemm([name])


def test_gemm_end_to_end(monkeypatch):
    monkeypatch.setattr(gemm_bench, "SHAPES", {"small": (48, 64), "wide": (64, 32)})
    monkeypatch.setattr("cachequant.kernels.cpu.last_level_bytes", lambda: 1 << 18)
    found = bench.gemm(["torch-fp32", "int8"], rows=9, repeats=2, threads=1)
    json.dumps(found, allow_nan=False)
    assert set(found["arms"]) == {"torch-fp32", "int8"} and found["missing"] == []
    for metrics in found["arms"].values():
        assert set(metrics) == {"gops", "gb_s", "bandwidth_fraction"}
        assert all(len(m["values"]) == 2 and min(m["values"]) > 0 for m in metrics.values())
    assert set(found["ratios"]) == {"torch-fp32/int8", "int8/torch-fp32"}
    assert set(found["shapes"]) == {"small 64x48", "wide 32x64"}
    assert set(found["shapes"]["small 64x48"]["int8"]) >= {"gops", "gb_s", "hot_gb_s", "seconds"}
    assert found["read_gb_s"]["median"] > 0
    assert found["provenance"]["copies"]["int8"] > 10
