"""From the codes of pages back to keys and values: what a reader needs that has no kernel for codes."""

import numpy as np
from numba import carray, njit

from cachequant.kernels.codebooks import CODED, unit_of_bits
from cachequant.kernels.coded import side_bytes, unpack
from cachequant.kernels.encode import numbers_of
from cachequant.kernels.ir import pointer
from cachequant.kernels.tiles import PAGE
from cachequant.kv.coding import Coding

_UNITS = unit_of_bits()


def decode(addresses: np.ndarray, coding: Coding, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
    """Write what the codes of one layer stand for.

    Parameters
    ----------
    addresses : (P,) int64 of pages of codes.
    coding : how they are coded.
    layer : which layer of the pages.
    keys, values : (kv_heads, 32 P, d) float32, written; they may be slices.
    """
    kv_heads, tokens, d = keys.shape
    if not tokens:
        return
    levels = np.empty((2, kv_heads, tokens, d), np.float32)
    _levels(addresses, coding.numbers, layer, levels)
    for side, (bits, out) in enumerate(zip(numbers_of.py_func(coding.numbers, layer), (keys, values), strict=False)):
        if bits > CODED:
            out[:] = levels[side]
            continue
        basis = coding.basis.array[layer, :, side]  # (kv_heads, 1 + 2 d, d)
        matrix = basis[:, 1 + d :]
        np.matmul(levels[side], matrix.swapaxes(1, 2) if side == 0 else matrix, out=out)
        out += basis[:, :1]


@njit(error_model="numpy", cache=True, nogil=True)
def _levels(addresses, coding, layer, out):
    """Scaled levels of keys and of values, still in the coded basis, to out (2, kv_heads, 32 P, d)."""
    kv_heads, d = out.shape[1], out.shape[3]
    k_bits, v_bits, offset = numbers_of(coding, layer)
    keys, values = np.empty((d, PAGE), np.float32), np.empty((PAGE, d), np.float32)
    for i in range(len(addresses)):
        at = addresses[i] + offset
        for head in range(kv_heads):
            _side(k_bits, at, keys)
            scales = _scales(k_bits, at, d)
            for t in range(PAGE):
                for k in range(d):
                    out[0, head, i * PAGE + t, k] = keys[k, t] * scales[t]
            at += side_bytes(k_bits, d)
            _side(v_bits, at, values)
            scales = _scales(v_bits, at, d)
            for t in range(PAGE):
                for k in range(d):
                    out[1, head, i * PAGE + t, k] = values[t, k] * scales[t]
            at += side_bytes(v_bits, d)


@njit(error_model="numpy", cache=True)
def _side(bits, address, out):
    """Levels of one side as float32, (k, n)."""
    k, n = out.shape
    if bits > CODED:
        unpack(bits, address, k, n, out.ctypes.data)
        return
    half, unit, pairs = 8 if bits < 4 else 16 // bits, _UNITS[bits], np.empty((k // 2, n, 2), np.int16)
    unpack(bits, address, k, n, pairs.ctypes.data)
    for i in range(k // 2):
        first = 2 * half * (i // half) + i % half
        for j in range(n):
            out[first, j] = pairs[i, j, 0] * unit
            out[first + half, j] = pairs[i, j, 1] * unit


@njit(error_model="numpy", cache=True)
def _scales(bits, address, d):
    """(32,) float32 of one side, ones where its values are plain floats."""
    out = np.ones(PAGE, np.float32)
    if bits <= CODED:
        halves = carray(pointer(address + side_bytes(bits, d) - 2 * PAGE), (PAGE,), np.uint16)
        words = out.view(np.uint32)
        for t in range(PAGE):
            words[t] = np.uint32(halves[t]) << np.uint32(16)
    return out
