"""Products against naive NumPy, bit for bit: odd shapes, every scheme, extreme values, any rows, any threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from cachequant import kernels, schemes
from cachequant.kernels import gemm, pack, simd
from cachequant.quantize import dequantize, quantize
from cachequant.schemes import EXACT, POW2, Block, Quantizer, Row, Tensor
from naive import matmul_codes, matmul_fp32, matmul_weights

SHAPES = [(1, 1, 1), (1, 16, 64), (2, 17, 31), (3, 5, 300), (6, 33, 48), (7, 40, 257), (13, 100, 130), (25, 47, 515)]
SETS = [s for s in simd.SETS.values() if s.runs_here]
BLOCK32 = Quantizer(Block(32), EXACT)


def shape_id(shape):
    return "x".join(map(str, shape))


def operands(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    x, w, residual = (rng.standard_normal(s, np.float32) for s in ((m, k), (n, k), (m, n)))
    return x, w, rng.standard_normal(n, np.float32), residual


def expected(x, w, weight, activation, bias=None, residual=None):
    """Naive product of weights quantized by `weight` and inputs by `activation` (None: float32)."""
    if weight is None:
        return matmul_fp32(x, w, bias, residual)
    k = x.shape[1]
    q = quantize(w, weight)
    if activation is None:
        return matmul_weights(x, q.codes, q.steps(), weight.block(k), bias, residual)
    p, block = quantize(x, activation), min(weight.block(k), activation.block(k), pack.longest(activation.bits))
    at = np.arange(-(-k // block)) * block
    steps = [r.steps()[:, at // f.block(k)] for r, f in ((p, activation), (q, weight))]
    return matmul_codes(p.codes, steps[0], q.codes, steps[1], block, bias, residual)


def wide(bits):
    return Quantizer(Row(), EXACT, bits=bits)


def packed(w, weight, kernel_set):
    return pack.pack_fp32(w, kernel_set) if weight is None else pack.pack_codes(quantize(w, weight), kernel_set)


@pytest.mark.parametrize("kernel_set", SETS, ids=lambda s: s.name)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize(
    "weight, activation",
    [
        (None, None),
        (schemes.INT8, schemes.INT8),
        (schemes.BFP8, schemes.BFP8),
        (schemes.HEADS["int8-block32"], BLOCK32),
        (schemes.INT8, None),
        (schemes.BFP8, None),
    ],
    ids=["fp32", "int8", "bfp8", "head-block32", "w8", "bfp8-w"],
)
def test_products_equal_the_naive_sequence(shape, weight, activation, kernel_set):
    x, w, bias, residual = operands(*shape)
    matrix = packed(w, weight, kernel_set)
    np.testing.assert_array_equal(gemm.matmul(x, matrix, activation), expected(x, w, weight, activation))
    got = gemm.matmul(x, matrix, activation, bias, residual)
    np.testing.assert_array_equal(got, expected(x, w, weight, activation, bias, residual))


@pytest.mark.parametrize("name", schemes.grid())
def test_every_scheme_of_the_grid(name):
    x, w, *_ = operands(7, 35, 331)
    x[2] = 0
    w[3, 20:] = 0
    scheme = schemes.get(name)
    for activation in (scheme.activation, None):
        got = gemm.matmul(x, gemm.pack_codes(quantize(w, scheme.weight)), activation)
        np.testing.assert_array_equal(got, expected(x, w, scheme.weight, activation))


@pytest.mark.parametrize("name", schemes.PRESETS)
def test_every_preset(name):
    x, w, bias, _ = operands(5, 35, 96)
    scheme = schemes.get(name)
    got = gemm.matmul(x, packed(w, scheme.weight, simd.SETS["portable"]), scheme.activation, bias)
    np.testing.assert_array_equal(got, expected(x, w, scheme.weight, scheme.activation, bias))


@pytest.mark.parametrize("kernel_set", SETS, ids=lambda s: s.name)
@pytest.mark.parametrize(
    "weight, activation",
    [
        (schemes.INT8, BLOCK32),
        (BLOCK32, schemes.INT8),
        (Quantizer(Block(128), POW2), Quantizer(Block(16), EXACT)),
        (Quantizer(Block(16), EXACT), Quantizer(Block(64), POW2)),
        (Quantizer(Tensor(), EXACT), schemes.BFP8),
    ],
    ids=lambda q: q.name,
)
def test_weights_and_inputs_may_have_different_blocks(weight, activation, kernel_set):
    x, w, *_ = operands(8, 33, 300)
    got = gemm.matmul(x, packed(w, weight, kernel_set), activation)
    np.testing.assert_array_equal(got, expected(x, w, weight, activation))


WIDE = [s for s in SETS if s.wide] + [s.emulated for s in simd.SETS.values() if s.wide and s not in SETS]


@pytest.mark.parametrize("kernel_set", WIDE, ids=lambda s: s.name)
@pytest.mark.parametrize("bits", [12, 16])
@pytest.mark.parametrize("shape", [*SHAPES, (5, 20, 9000)], ids=shape_id)
def test_inputs_of_more_than_8_bits(shape, bits, kernel_set):
    """Sums of 16 bits are cut after 512 values of k, those of 12 bits after 8,192."""
    x, w, bias, residual = operands(*shape)
    for weight, activation in (
        (schemes.INT8, wide(bits)),
        (BLOCK32, wide(bits)),
        (schemes.INT8, replace(BLOCK32, bits=bits)),
    ):
        got = gemm.matmul(x, packed(w, weight, kernel_set), activation, bias, residual)
        np.testing.assert_array_equal(got, expected(x, w, weight, activation, bias, residual))


@pytest.mark.parametrize("kernel_set", WIDE, ids=lambda s: s.name)
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_no_sum_overflows(bits, kernel_set):
    """The largest codes of one sign, at the longest sums that are not cut and beyond."""
    for k in (pack.longest(bits), 2 * pack.longest(bits) + 3):
        x, w = np.ones((2, k), np.float32), np.ones((3, k), np.float32)
        x[1] = -1
        got = gemm.matmul(x, packed(w, schemes.INT8, kernel_set), wide(bits))
        np.testing.assert_array_equal(got, expected(x, w, schemes.INT8, wide(bits)))
        np.testing.assert_allclose(np.abs(got), k, rtol=1e-6)
        assert (np.sign(got) == [[1], [-1]]).all()


@pytest.mark.parametrize("kernel_set", SETS, ids=lambda s: s.name)
@pytest.mark.parametrize("granularity", [Row(), Block(256)], ids=lambda g: g.name)
def test_extreme_codes_do_not_saturate(granularity, kernel_set):
    quantizer, rng = Quantizer(granularity, EXACT), np.random.default_rng(1)
    signs = rng.choice([-1.0, 1.0], (4, 4096)).astype(np.float32)
    for x, w in ((signs, signs), (np.abs(signs), np.abs(signs)), (np.abs(signs), -np.abs(signs))):
        got = gemm.matmul(x, packed(w, quantizer, kernel_set), quantizer)
        np.testing.assert_array_equal(got, expected(x, w, quantizer, quantizer))
        np.testing.assert_allclose(got, x @ w.T, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e-37])
@pytest.mark.parametrize("quantizer", [schemes.INT8, schemes.BFP8], ids=lambda q: q.name)
def test_tiny_and_huge_magnitudes(scale, quantizer):
    x, w, *_ = operands(5, 20, 70)
    x[1] *= np.float32(scale)
    x[2, :32] *= np.float32(scale)
    got = gemm.matmul(x, gemm.pack_codes(quantize(w, quantizer)), quantizer)
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got, expected(x, w, quantizer, quantizer))


def test_longer_sums_than_int32_holds():
    x, w = np.ones((1, 140_000), np.float32), np.ones((2, 140_000), np.float32)
    got = gemm.matmul(x, gemm.pack_codes(quantize(w, schemes.INT8)), schemes.INT8)
    np.testing.assert_allclose(got, 140_000, rtol=1e-6)


ARMS = {
    "fp32": (None, None),
    "int8": (schemes.INT8, schemes.INT8),
    "bfp8": (schemes.BFP8, schemes.BFP8),
    "w8": (schemes.INT8, None),
    "bfp8-w": (schemes.BFP8, None),
    "w8a12": (schemes.INT8, wide(12)),
    "w8a16": (schemes.INT8, wide(16)),
}


@pytest.mark.parametrize("arm", ARMS)
def test_rows_do_not_depend_on_their_neighbours_or_on_threads(arm):
    weight, activation = ARMS[arm]
    x, w, bias, residual = operands(270, 190, 576)
    matrix = packed(w, weight, WIDE[0] if activation and activation.bits > 8 else SETS[0])
    before = kernels.get_threads()
    try:
        kernels.set_threads(1)
        whole = gemm.matmul(x, matrix, activation, bias, residual)
        kernels.set_threads(2)
        np.testing.assert_array_equal(whole, gemm.matmul(x, matrix, activation, bias, residual))
        for m in (1, 2, 5, 7, 64):
            for start in range(0, 270, m):
                part = slice(start, start + m)
                got = gemm.matmul(x[part], matrix, activation, bias, residual[part])
                np.testing.assert_array_equal(whole[part], got)
    finally:
        kernels.set_threads(before)


@pytest.mark.parametrize("weight", [None, schemes.INT8, schemes.BFP8, schemes.HEADS["int8-block32"]], ids=str)
def test_rows_are_looked_up_dequantized(weight):
    _, w, *_ = operands(1, 50, 77)
    truth = w if weight is None else dequantize(quantize(w, weight))
    ids = np.array([0, 49, 7, 7])
    for kernel_set in SETS:
        np.testing.assert_array_equal(gemm.rows(packed(w, weight, kernel_set), ids), truth[ids])


def test_bytes_count_codes_and_scales_as_stored():
    w = np.ones((32, 64), np.float32)
    assert gemm.pack_fp32(w).nbytes == 32 * 64 * 4
    assert gemm.pack_codes(quantize(w, schemes.INT8)).nbytes == 32 * 64 + 32 * 4
    assert gemm.pack_codes(quantize(w, schemes.BFP8)).nbytes == 32 * 64 + 32 * 2
    assert gemm.pack_codes(quantize(w, schemes.HEADS["int8-block32"])).nbytes == 32 * 64 + 32 * 2 * 2


def test_results_go_where_asked_and_no_rows_are_fine():
    x, w, *_ = operands(3, 20, 30)
    matrix, out = gemm.pack_fp32(w), np.empty((3, 20), np.float32)
    assert gemm.matmul(x, matrix, out=out) is out
    np.testing.assert_array_equal(out, gemm.matmul(np.asfortranarray(x), matrix))
    assert gemm.matmul(x[:0], matrix).shape == (0, 20)


def test_concurrent_calls_on_one_matrix():
    """Python threads may share a matrix, also with different input formats."""
    x, w, *_ = operands(64, 256, 576)
    matrix, formats = gemm.pack_codes(quantize(w, schemes.INT8)), [schemes.INT8, None, BLOCK32]
    alone = [gemm.matmul(x, matrix, f) for f in formats]

    def call(i):
        return np.array_equal(gemm.matmul(x, matrix, formats[i % 3]), alone[i % 3])

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, range(60)))
