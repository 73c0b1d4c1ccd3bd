"""Norms, rotary positions and activations, row by row.

Every row goes through the same arithmetic whatever the other rows are, with sums in the fixed order of `kernels.ir`.
Kernels take plain arrays and check nothing; inside, rows are addresses, because a slice of an array counts references
with an atomic operation, and its indices keep LLVM from vectorizing.
"""

import numpy as np
from numba import carray, int64, njit, prange

from cachequant.kernels.folds import row_squares, row_sum
from cachequant.kernels.ir import exp, fma, pointer
from cachequant.kernels.lazy import MATRIX, STRIDED, compile_once

PARALLEL = 1 << 15  # elements above which a second thread pays


@njit(inline="always")
def _floats(address, count):
    return carray(pointer(address), (count,), np.float32)


@njit(inline="always")
def _row(matrix, t):
    """Address of row t of a contiguous matrix."""
    return np.int64(matrix.ctypes.data) + 4 * t * matrix.shape[1]


@njit(error_model="numpy", cache=True)
def rms_row(x, weight, n, eps, out):
    factor = np.float32(1) / np.sqrt(row_squares(x, n, np.float32(0)) / np.float32(n) + np.float32(eps))
    x, weight, out = _floats(x, n), _floats(weight, n), _floats(out, n)
    for i in range(n):
        out[i] = x[i] * factor * weight[i]


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def rms_norm(x, weight, eps, out):
    """x / sqrt(mean(x^2) + eps) * weight for each row (Zhang & Sennrich 2019, eq. 4).

    Parameters
    ----------
    x, out : (T, width) float32, contiguous.
    weight : (width,) float32.
    eps : float.
    """
    n, w = x.shape[1], np.int64(weight.ctypes.data)
    if x.size < PARALLEL:
        for t in range(x.shape[0]):
            rms_row(_row(x, t), w, n, eps, _row(out, t))
    else:
        for t in prange(x.shape[0]):
            rms_row(_row(x, t), w, n, eps, _row(out, t))


@njit(error_model="numpy", cache=True)
def layer_row(x, weight, bias, n, eps, out):
    mean = row_sum(x, n) / np.float32(n)
    factor = np.float32(1) / np.sqrt(row_squares(x, n, mean) / np.float32(n) + np.float32(eps))
    x, weight, bias, out = _floats(x, n), _floats(weight, n), _floats(bias, n), _floats(out, n)
    for i in range(n):
        out[i] = fma((x[i] - mean) * factor, weight[i], bias[i])


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def layer_norm(x, weight, bias, eps, out):
    """(x - mean) / sqrt(variance + eps) * weight + bias for each row (Ba et al. 2016, eq. 4).

    Parameters
    ----------
    x, out : (T, width) float32, contiguous.
    weight, bias : (width,) float32.
    eps : float.
    """
    n, w, b = x.shape[1], np.int64(weight.ctypes.data), np.int64(bias.ctypes.data)
    if x.size < PARALLEL:
        for t in range(x.shape[0]):
            layer_row(_row(x, t), w, b, n, eps, _row(out, t))
    else:
        for t in prange(x.shape[0]):
            layer_row(_row(x, t), w, b, n, eps, _row(out, t))


@njit(error_model="numpy", cache=True)
def rope_row(x, cos, sin, half, heads):
    cos, sin = _floats(cos, half), _floats(sin, half)
    for h in range(heads):
        low = _floats(x + h * half * 8, half)
        high = _floats(x + (h * 2 + 1) * half * 4, half)
        for i in range(half):
            a, b = low[i], high[i]
            low[i] = fma(a, cos[i], -b * sin[i])
            high[i] = fma(b, cos[i], a * sin[i])


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def _rope(x, cos, sin, start):
    half, heads = cos.shape[1], x.shape[1]
    if x.size < PARALLEL:
        for t in range(x.shape[0]):
            at = np.int64(x.ctypes.data) + t * x.strides[0]
            rope_row(at, _row(cos, start + t), _row(sin, start + t), half, heads)
    else:
        for t in prange(x.shape[0]):
            at = np.int64(x.ctypes.data) + t * x.strides[0]
            rope_row(at, _row(cos, start + t), _row(sin, start + t), half, heads)


def rope(x, cos, sin, start):
    """Rotate queries or keys to their positions, in place (RoFormer, Su et al. 2021, section 3.2; the pairs are
    (i, i + d / 2), as Llama checkpoints on the hub store them).

    Parameters
    ----------
    x : (T, heads, d) float32; rows may be strided, each (heads, d) contiguous. Row t stands at position start + t.
    cos, sin : (positions, d / 2) float32.
    start : absolute position of the first row.
    """
    if not _rope.overloads:
        compile_once(_rope, STRIDED, MATRIX, MATRIX, int64)
    _rope(x, cos, sin, start)


@njit(error_model="numpy", cache=True)
def silu_row(x, n, out):
    gate, up, out = _floats(x, n), _floats(x + 4 * n, n), _floats(out, n)
    for i in range(n):
        out[i] = gate[i] / (np.float32(1) + exp(-gate[i])) * up[i]


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def silu_mul(gate_up, out):
    """silu(gate) * up, silu(x) = x / (1 + e^-x) (SwiGLU, Shazeer 2020, section 2).

    Parameters
    ----------
    gate_up : (T, 2 F) float32, contiguous; gate is the first half of a row, up the second.
    out : (T, F) float32.
    """
    n = out.shape[1]
    if out.size < PARALLEL:
        for t in range(out.shape[0]):
            silu_row(_row(gate_up, t), n, _row(out, t))
    else:
        for t in prange(out.shape[0]):
            silu_row(_row(gate_up, t), n, _row(out, t))


@njit(error_model="numpy", cache=True)
def gelu_row(x, n):
    # tanh(u) = 2 / (1 + e^-2u) - 1, so gelu(x) = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
    a, b = np.float32(-2 * 0.7978845608028654), np.float32(-2 * 0.7978845608028654 * 0.044715)
    x = _floats(x, n)
    for i in range(n):
        v = x[i]
        x[i] = v / (np.float32(1) + exp(v * fma(b, v * v, a)))


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def gelu_tanh(x):
    """The tanh form of GELU, in place (Hendrycks & Gimpel 2016, section 2).

    Parameters
    ----------
    x : (T, width) float32, contiguous.
    """
    if x.size < PARALLEL:
        for t in range(x.shape[0]):
            gelu_row(_row(x, t), x.shape[1])
    else:
        for t in prange(x.shape[0]):
            gelu_row(_row(x, t), x.shape[1])
