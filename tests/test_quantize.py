"""Reference quantizer: hand values, ceilings from theory, and every format of the grid."""

import numpy as np
import pytest

from cachequant import quantize, schemes
from cachequant.errors import InputError, NumericsError
from cachequant.schemes import BFP8, EXACT, INT8, POW2, Block, Quantizer, Row, ScaleRule, Tensor

QUANTIZERS = [s.weight for s in schemes.grid().values()] + [
    Quantizer(Block(32), EXACT, half=True),
    Quantizer(Row(), EXACT, half=True),
    Quantizer(Row(), EXACT, bits=12),
    Quantizer(Block(32), POW2, bits=16),
]


def test_worked_example():
    q = quantize.quantize(np.array([[1.5, -0.7, 0.2, -1.9]], np.float32), BFP8)
    assert q.scales.tolist() == [[1]]  # 2^1
    assert q.codes[0, 0] == 95
    np.testing.assert_allclose(quantize.dequantize(q)[0, 0], 95 * 2 / 127, rtol=1e-6)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: q.name)
@pytest.mark.parametrize("k", [1, 31, 32, 257, 576])
def test_error_is_at_most_half_a_step(rng, quantizer, k):
    x = (rng.standard_normal((7, k)) * np.exp(rng.normal(0, 4, (7, 1)))).astype(np.float32)
    q = quantize.quantize(x, quantizer)
    step = np.repeat(q.steps(), quantizer.block(k), axis=1)[:, :k]
    assert (np.abs(quantize.dequantize(q) - x) <= step * 0.50001).all()
    assert q.codes.min() >= -quantizer.largest_code


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: q.name)
def test_scale_is_the_smallest_allowed(rng, quantizer):
    x = np.concatenate([rng.standard_normal((40, 64)), 2.0 ** rng.integers(-20, 20, (8, 64))]).astype(np.float32)
    q = quantize.quantize(x, quantizer)
    scale = q.steps().astype(np.float64) * quantizer.largest_code
    largest = np.abs(x).reshape(len(x), q.steps().shape[1], -1).max(-1)
    largest = np.broadcast_to(largest.max() if quantizer.granularity == Tensor() else largest, scale.shape)
    n = quantizer.scale.steps
    slack = 2.0 ** (1 / n) if n else (1 + 2e-3 if quantizer.half else 1)
    assert (scale >= largest * (1 - 1e-6)).all()
    assert (scale < largest * slack * (1 + 1e-6)).all()


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: q.name)
def test_zero_tiny_and_huge_rows(quantizer):
    x = np.zeros((5, 33), np.float32)
    x[1], x[2], x[3, 0], x[4, 32] = 1e-38, 1e-30, (6e6 if quantizer.half else 1e38), -2.0
    q = quantize.quantize(x, quantizer)
    y = quantize.dequantize(q)
    assert np.isfinite(y).all()
    assert not y[:2].any()
    if quantizer.granularity != Tensor():
        np.testing.assert_allclose(y[4, 32], -2.0, rtol=0.51 / 64)


def test_exact_scale_hits_the_largest_code(rng):
    q = quantize.quantize(rng.standard_normal((64, 96)).astype(np.float32), INT8)
    assert (np.abs(q.codes).max(-1) == 127).all()


def test_rows_are_independent_and_a_tensor_scale_is_shared(rng):
    x = rng.standard_normal((2, 64)).astype(np.float32) * np.array([[1], [1000]], np.float32)
    alone = quantize.quantize(x[:1], INT8)
    assert np.array_equal(quantize.quantize(x, INT8).codes[0], alone.codes[0])
    assert np.abs(quantize.quantize(x, Quantizer(Tensor(), EXACT)).codes[0]).max() <= 1


def test_exact_scales_move_under_a_perturbation_that_powers_of_two_ignore(rng):
    x = rng.standard_normal((1, 32)).astype(np.float32)
    nudged = x * np.float32(1 + 1e-5)
    assert quantize.quantize(x, INT8).steps() != quantize.quantize(nudged, INT8).steps()
    assert quantize.quantize(x, BFP8).scales == quantize.quantize(nudged, BFP8).scales


def test_relative_error_of_bfp8_on_gaussian_values(rng):
    x = rng.standard_normal((16, 768)).astype(np.float32)
    y = quantize.dequantize(quantize.quantize(x, BFP8))
    assert np.linalg.norm(y - x) / np.linalg.norm(x) < 0.01


@pytest.mark.parametrize(
    ("quantizer", "k", "bits"),
    [
        (BFP8, 768, 8.25),
        (INT8, 768, 8 + 32 / 768),
        (Quantizer(Block(32), EXACT), 768, 9.0),
        (Quantizer(Row(), POW2), 768, 8 + 8 / 768),
        (Quantizer(Block(32), EXACT, half=True), 768, 8.5),
        (Quantizer(Block(256), EXACT), 300, 8 + 64 / 300),
        (Quantizer(Block(16), ScaleRule(8)), 160, 9.0),
    ],
)
def test_bits_per_value_are_what_is_stored(quantizer, k, bits):
    assert quantizer.bits_per_value(12, k) == pytest.approx(bits)
    q = quantize.quantize(np.ones((12, k), np.float32), quantizer)
    assert q.nbytes * 8 / q.codes.size == pytest.approx(bits)


def test_concatenate_keeps_each_matrix_its_scales(rng):
    parts = [rng.standard_normal((n, 40)).astype(np.float32) * n for n in (3, 5)]
    for quantizer in QUANTIZERS:
        qs = [quantize.quantize(p, quantizer) for p in parts]
        both = quantize.concatenate(qs)
        assert np.array_equal(quantize.dequantize(both), np.concatenate([quantize.dequantize(q) for q in qs]))


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (np.zeros(3), InputError),
        (np.zeros((0, 4)), InputError),
        (np.array([[np.nan, 1]]), NumericsError),
        (np.array([[np.inf]]), NumericsError),
    ],
)
def test_bad_input_is_refused(x, error):
    with pytest.raises(error):
        quantize.quantize(x, INT8)


def test_float16_scales_refuse_what_they_cannot_hold():
    with pytest.raises(InputError, match="float16"):
        quantize.quantize(np.array([[1e8]], np.float32), Quantizer(Row(), EXACT, half=True))
