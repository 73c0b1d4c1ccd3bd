"""The codec against theory, and the kernels against the codec."""

import numpy as np
import pytest
from numba import njit

from cachequant.errors import InputError
from cachequant.kernels import codebooks, coded, encode, whole
from cachequant.kernels.tiles import BYTES, RAISED
from cachequant.kernels.turned import WHOLE
from cachequant.kv import codec

# of a Gaussian vector of 64 with the searched scale; Lloyd-Max of an endless one: .117, .0345, .0095
DISTORTION = {2: 0.111, 3: 0.0296, 4: 0.0072}


@njit
def encode_columns(bits, u, d, feedback, values, out):
    encode.encode_columns(bits, u, d, feedback, values, out)


@njit
def unpack(bits, codes, k, n, out):
    coded.unpack(bits, codes, k, n, out)


def in_pairs(levels, bits):
    """(k, n) whole numbers in the order of `kernels.coded`."""
    half = coded.per_word(bits) // 2
    return levels.reshape(-1, 2, half, levels.shape[1]).transpose(0, 2, 3, 1).astype(np.int16)


def vectors(rng, d):
    y = rng.standard_normal((32, d)).astype(np.float32)
    y[3], y[4] = 0, 1
    y[5] *= np.float32(1e-30)
    y[6] *= np.float32(1e17)
    y[7, :] = 0
    y[7, d // 2] = 1e18
    return y


@pytest.mark.parametrize("values", [False, True], ids=["keys", "values"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("d", [16, 48, 64, 80, 128])
@pytest.mark.parametrize("fed", [False, True], ids=["alone", "fed"])
def test_kernels_write_the_codes_of_the_reference(rng, fed, d, bits, values):
    y, size = vectors(rng, d), coded.side_bytes.py_func(bits, d)
    memory = np.full(size + 16, 0xA5, np.uint8)
    feedback = (rng.standard_normal(d * (d - 1) // 2) / 8).astype(np.float32) if fed else None
    address = feedback.ctypes.data if fed else 0
    encode_columns(bits, np.ascontiguousarray(y.T), d, address, values, memory.ctypes.data)
    codes, scales = codec.encode(y, bits, feedback)
    packed = codec.pack(codes if values else codes.T, bits)
    assert np.array_equal(memory[: packed.size], packed)
    assert np.array_equal(memory[size - 64 : size].view(np.uint16), scales.view(np.uint32) >> 16)
    assert (memory[size:] == 0xA5).all()
    k, n = (32, d) if values else (d, 32)
    levels = np.empty((k // 2, n, 2), np.int16)
    unpack(bits, memory.ctypes.data, k, n, levels.ctypes.data)
    want = np.rint(codec.decode(codes, np.ones(32, np.float32), bits) / codebooks.UNITS[bits])
    assert np.array_equal(levels.reshape(-1), in_pairs(want if values else want.T, bits).reshape(-1))


@pytest.mark.parametrize("bits", DISTORTION)
def test_levels_are_those_of_lloyd_and_max(bits):
    published = {
        2: [0.45278, 1.51042],
        3: [0.24509, 0.75601, 1.34391, 2.15195],
        4: [0.1284, 0.38805, 0.65676, 0.94234, 1.25623, 1.61805, 2.06902, 2.73259],
    }
    np.testing.assert_allclose(codebooks.magnitudes(bits), published[bits], atol=0.01)
    x = np.abs(np.random.default_rng(0).standard_normal(200_000))
    errors = [((x[:, None] - np.array(m)) ** 2).min(1).mean() for m in (codebooks.magnitudes(bits), published[bits])]
    assert errors[0] <= 1.001 * errors[1]


@njit
def page_weights(looked_up, bits, p, scales, seen, top, out):
    if looked_up:
        return whole.page_weights(True, bits, p, scales, seen, np.float32(top), out)
    return whole.page_weights(False, bits, p, scales, seen, np.float32(top), out)


@njit
def whole_numbers(looked_up, bits, x, count, factor, out):
    if looked_up:
        return whole.whole_numbers(True, bits, x, count, np.float32(factor), out)
    return whole.whole_numbers(False, bits, x, count, np.float32(factor), out)


def in_order(memory, looked_up, bits, high):
    """Whole numbers as `kernels.whole` lays them out, in the order of k; `high` is the type of high bytes."""
    per_word = coded.per_word(bits)
    if not (looked_up and BYTES):
        return memory.view(np.int16).reshape(-1, per_word // 2, 2).transpose(0, 2, 1).reshape(-1)
    halves = memory.reshape(-1, per_word // 4, 2, 4)
    low, high = halves[:, :, 0].view(high).astype(int), halves[:, :, 1].view(high).astype(int)
    return (256 * high + low).transpose(0, 2, 1).reshape(-1)


@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("size", [1, 1e-30])
def test_queries_become_whole_numbers(rng, size, bits, looked_up):
    x, out = (rng.standard_normal(64) * size).astype(np.float32), np.empty(128, np.uint8)
    factor = np.float32(WHOLE) / np.abs(x).max()
    total = whole_numbers(looked_up, bits, x.ctypes.data, 64, factor, out.ctypes.data)
    found = in_order(out, looked_up, bits, np.int8)
    assert np.array_equal(found, np.rint(x * factor)) and np.abs(found).max() == WHOLE
    assert total == found.sum()


@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_weights_become_whole_numbers(rng, bits, looked_up):
    p, scales = rng.random(32).astype(np.float32), codec.bfloat16(rng.random(32).astype(np.float32))
    p[3:9] = 0
    halves, seen, out = (scales.view(np.uint32) >> 16).astype(np.uint16), np.ones(8, np.float32), np.empty(64, np.uint8)
    rest = halves.ctypes.data, seen.ctypes.data, WHOLE, out.ctypes.data
    step, found = page_weights(looked_up, bits, p.ctypes.data, *rest), in_order(out, looked_up, bits, np.uint8)
    np.testing.assert_allclose(found * step, p * scales, atol=0.51 * step)
    assert found.max() == WHOLE
    np.testing.assert_allclose(seen.sum(), 8 + p.sum(), rtol=1e-6)
    assert page_weights(looked_up, bits, np.zeros(32, np.float32).ctypes.data, *rest) == 0
    assert not out.any()


@njit
def multiply(columns, bits, rows, a, a_row, codes, n, factors, addends, stride, c, ldc, k):
    if columns:
        coded.multiply(True, bits, rows, a, a_row, codes, n, factors, addends, stride, c, ldc, k)
    else:
        coded.multiply(False, bits, rows, a, a_row, codes, n, factors, addends, stride, c, ldc, k)


@pytest.mark.parametrize("columns", [True, False], ids=["keys", "values"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("d", [16, 32, 48, 64, 80, 112, 128])
def test_products_with_codes_are_exact(rng, d, rows, bits, columns):
    (k, n), top = (d, 32) if columns else (32, d), WHOLE * 64 // max(d, 64)
    codes = rng.integers(-127, 128, (k, n)) if bits == 8 else rng.integers(0, 1 << bits, (k, n))
    levels = np.rint(codec.decode(codes, np.ones(k, np.float32), bits) / codebooks.UNITS[bits]).astype(int)
    packed, numbers = codec.pack(codes, bits), rng.integers(-top if columns else 0, top + 1, (rows, k))
    numbers[:, -1] = top  # of weights the largest one, so that they are multiplied by 1
    ones, seen, a = np.full(32, 0x3F80, np.uint16), np.zeros(8, np.float32), np.empty((rows, k), np.uint32)
    behind = rng.standard_normal((rows, 4)).astype(np.float32)
    for x, rest, out in zip(numbers.astype(np.float32), behind, a, strict=True):
        if columns:
            total = whole_numbers(True, bits, x.ctypes.data, k, 1, out.ctypes.data)
            rest[2:3].view(np.int32)[0] = -RAISED * total
        else:
            page_weights(True, bits, x.ctypes.data, ones.ctypes.data, seen.ctypes.data, top, out.ctypes.data)
    factors = rng.integers(0x3F00, 0x4000, n).astype(np.uint16)
    c = rng.standard_normal((rows, n + 16)).astype(np.float32)
    if columns:
        factor, plus = (factors.astype(np.uint32) << 16).view(np.float32) * behind[:, :1], behind[:, 1:2]
    else:
        factor, plus = behind[:, :1], c[:, :n]
    want = c.copy()
    want[:, :n] = (numbers @ levels).astype(np.float32).astype(float) * factor + plus
    at = (factors if columns else behind).ctypes.data, behind.ctypes.data
    multiply(columns, bits, rows, a.ctypes.data, k, packed.ctypes.data, n, *at, 4, c.ctypes.data, n + 16, k)
    assert np.array_equal(c, want)


@pytest.mark.parametrize("bits", DISTORTION)
def test_distortion_is_that_of_theory(bits):
    y = np.random.default_rng(0).standard_normal((20000, 64)).astype(np.float32)
    codes, scales = codec.encode(y, bits)
    error = ((codec.decode(codes, scales, bits) - y) ** 2).sum() / (y**2).sum()
    assert error <= 1.02 * DISTORTION[bits]


def test_8_bits_stay_within_half_a_step(rng):
    y = vectors(rng, 64)
    codes, scales = codec.encode(y, 8)
    assert codes.min() >= -127
    assert (np.abs(codec.decode(codes, scales, 8) - y) <= 0.5 * (1 + 1e-2) * scales[:, None] + 1e-38).all()


@pytest.mark.parametrize("d", [16, 48, 64, 80, 96, 112, 128, 256])
def test_rotations_are_orthonormal_and_spread_a_spike(d):
    turn = codec.rotation(d)
    np.testing.assert_allclose(turn @ turn.T, np.eye(d), atol=1e-12)
    smallest = min(2**n for n in range(9) if d & 2**n)
    assert np.abs(turn).max() <= smallest**-0.5 + 1e-12


@pytest.mark.parametrize("d", [0, 8, 20, 100])
def test_head_sizes_that_cannot_be_coded(d):
    with pytest.raises(InputError, match=f"head size {d} .* multiple of 16"):
        codec.check_head_dim(d)


def test_scales_are_bfloat16(rng):
    _, scales = codec.encode(rng.standard_normal((50, 32)).astype(np.float32), 3)
    assert not (scales.view(np.uint32) & 0xFFFF).any()
    assert np.array_equal(codec.bfloat16(scales), scales)
