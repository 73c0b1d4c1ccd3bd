"""Every rung of the ladder gives the same integers as NumPy, and the same layer as the SIMD kernel, bit for bit."""

import numpy as np
import pytest

from cachequant import schemes
from cachequant.kernels import gemm, ladder
from cachequant.quantize import quantize

SHAPES = [(1, 32, 16), (3, 70, 33), (13, 576, 192), (33, 129, 100)]
RUNGS = [ladder.triple_loop, ladder.blocked]


def codes(shape, seed):
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("m,k,n", SHAPES, ids=str)
def test_product_equals_numpy(rung, m, k, n):
    a, b = codes((m, k), 0), codes((n, k), 1)
    out = np.empty((m, n), np.int32)
    rung(a, np.ascontiguousarray(b.T) if rung is ladder.triple_loop else b, out)
    assert np.array_equal(out, a.astype(np.int32) @ b.T.astype(np.int32))


@pytest.mark.parametrize("rung", RUNGS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("m,k,n", SHAPES, ids=str)
def test_layer_equals_the_top_rung(rung, m, k, n):
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((m, k)).astype(np.float32), quantize(rng.standard_normal((n, k)), schemes.INT8)
    top = gemm.matmul(x, gemm.pack_codes(w), schemes.INT8)
    assert np.array_equal(ladder.linear(rung, x, w, ladder.layout(rung, w)), top)


def test_extreme_codes_do_not_saturate():
    a, b = np.full((2, 4096), 127, np.int8), np.full((5, 4096), -127, np.int8)
    out = np.empty((2, 5), np.int32)
    ladder.blocked(a, b, out)
    assert (out == -127 * 127 * 4096).all()
