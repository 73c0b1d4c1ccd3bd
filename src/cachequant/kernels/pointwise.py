"""Norms, rotary positions and activations, row by row.

Every row goes through the same arithmetic whatever the other rows are, with sums in the fixed order of `kernels.ir`.
Kernels take plain arrays and check nothing.
"""

import numpy as np
from numba import carray, int64, njit, prange

from cachequant.kernels.ir import exp, fma, pointer, row_squares, row_sum
from cachequant.kernels.lazy import MATRIX, STRIDED, compile_once

PARALLEL = 1 << 15  # elements above which a second thread pays


@njit(inline="always")
def _floats(address, count):
    return carray(pointer(address), (count,), np.float32)


@njit(error_model="numpy", cache=True)
def _rms_row(x, weight, eps, out):
    n = x.size
    factor = np.float32(1) / np.sqrt(row_squares(x.ctypes.data, n, np.float32(0)) / np.float32(n) + np.float32(eps))
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
    if x.size < PARALLEL:
        for t in range(x.shape[0]):
            _rms_row(x[t], weight, eps, out[t])
    else:
        for t in prange(x.shape[0]):
            _rms_row(x[t], weight, eps, out[t])


@njit(error_model="numpy", cache=True)
def _layer_row(x, weight, bias, eps, out):
    n = x.size
    mean = row_sum(x.ctypes.data, n) / np.float32(n)
    factor = np.float32(1) / np.sqrt(row_squares(x.ctypes.data, n, mean) / np.float32(n) + np.float32(eps))
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
    if x.size < PARALLEL:
        for t in range(x.shape[0]):
            _layer_row(x[t], weight, bias, eps, out[t])
    else:
        for t in prange(x.shape[0]):
            _layer_row(x[t], weight, bias, eps, out[t])


@njit(error_model="numpy", cache=True)
def _rope_row(x, cos, sin, heads):
    half = cos.size
    for h in range(heads):
        low = _floats(x + h * half * 8, half)
        high = _floats(x + (h * 2 + 1) * half * 4, half)
        for i in range(half):
            a, b = low[i], high[i]
            low[i] = fma(a, cos[i], -b * sin[i])
            high[i] = fma(b, cos[i], a * sin[i])


@njit(error_model="numpy", cache=True, nogil=True)
def _rope(x, cos, sin, start):
    for t in range(x.shape[0]):
        _rope_row(np.int64(x.ctypes.data) + t * x.strides[0], cos[start + t], sin[start + t], x.shape[1])


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
def _silu_row(x, out):
    n = out.size
    for i in range(n):
        out[i] = x[i] / (np.float32(1) + exp(-x[i])) * x[n + i]


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def silu_mul(gate_up, out):
    """silu(gate) * up, silu(x) = x / (1 + e^-x) (SwiGLU, Shazeer 2020, section 2).

    Parameters
    ----------
    gate_up : (T, 2 F) float32, contiguous; gate is the first half of a row, up the second.
    out : (T, F) float32.
    """
    if out.size < PARALLEL:
        for t in range(out.shape[0]):
            _silu_row(gate_up[t], out[t])
    else:
        for t in prange(out.shape[0]):
            _silu_row(gate_up[t], out[t])


@njit(error_model="numpy", cache=True)
def _gelu_row(x):
    # tanh(u) = 2 / (1 + e^-2u) - 1, so gelu(x) = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
    a, b = np.float32(-2 * 0.7978845608028654), np.float32(-2 * 0.7978845608028654 * 0.044715)
    for i in range(x.size):
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
            _gelu_row(x[t])
    else:
        for t in prange(x.shape[0]):
            _gelu_row(x[t])
