"""The input transform for whole matrices: what packing does to weights, and the reference's fast equal."""

import numpy as np
from numba import njit

from cachequant.kernels import native, selfcheck
from cachequant.kernels.calls import transform
from cachequant.kernels.native import TRANSFORM


def rotate(x: np.ndarray, factors: np.ndarray, block: int) -> np.ndarray:
    """(M, K) float32: `transform.walsh_hadamard(x * factors, block)`, bit for bit.

    Parameters
    ----------
    x : (M, K) float32.
    factors : (K,) float32.
    block : a power of two that divides K; 1 for the factors alone.
    """
    x, factors = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(factors, np.float32)
    out, table = np.empty_like(x), native.table(selfcheck.active())
    _rows(table, x.ctypes.data, *x.shape, factors.ctypes.data, block, out.ctypes.data)
    return out


@njit(cache=True, nogil=True)
def _rows(table, x, rows, k, factors, block, out):
    """Takes addresses, so that read-only arrays need no code of their own."""
    for i in range(rows):
        transform(table[TRANSFORM], x + 4 * k * i, k, factors, block, out + 4 * k * i)
