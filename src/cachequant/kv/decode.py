"""From the codes of pages back to keys and values: what a reader needs that has no kernel for codes."""

import numpy as np
from numba import carray, njit

from cachequant.kernels.codebooks import CODED, UNITS
from cachequant.kernels.coded import per_word, side_bytes, unpack
from cachequant.kernels.encode import numbers_of
from cachequant.kernels.ir import pointer
from cachequant.kernels.slab import side_at
from cachequant.kernels.tiles import PAGE
from cachequant.kernels.views import keep
from cachequant.kv.coding import Coding


def decode(addresses: np.ndarray, coding: Coding, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
    """Write what the codes of one layer stand for.

    Parameters
    ----------
    addresses : (P,) int64 of pages of codes (see `kernels.slab`).
    coding : how they are coded.
    layer : which layer of the pages.
    keys, values : (kv_heads, 32 P, d) float32, written; they may be slices.
    """
    kv_heads, tokens, d = keys.shape
    if not tokens:
        return
    sides = numbers_of.py_func(coding.numbers, layer)[:2]
    levels = np.empty((2, kv_heads, tokens, d), np.float32)
    halves = np.array([per_word(bits) // 2 if bits <= CODED else 0 for bits in sides])
    units = np.array([UNITS.get(bits, 1) for bits in sides], np.float32)
    _levels(addresses, coding.numbers, layer, halves, units, levels)
    for side, (bits, out) in enumerate(zip(sides, (keys, values), strict=True)):
        if bits > CODED:
            out[:] = levels[side]
            continue
        basis = coding.basis.array[layer, :, side]  # (kv_heads, 1 + 2 d, d)
        matrix = basis[:, 1 + d :]
        np.matmul(levels[side], matrix.swapaxes(1, 2) if side == 0 else matrix, out=out)
        out += basis[:, :1]


@njit(error_model="numpy", cache=True, nogil=True)
def _levels(addresses, coding, layer, halves, units, out):
    """Scaled levels of keys and of values, still in the coded basis, to out (2, kv_heads, 32 P, d)."""
    kv_heads, d = out.shape[1], out.shape[3]
    k_bits, v_bits, offset = numbers_of(coding, layer)
    room = np.empty(d * PAGE, np.float32)
    for i in range(len(addresses)):
        at, tokens = offset, slice(i * PAGE, (i + 1) * PAGE)
        for head in range(kv_heads):
            for side in range(2):
                bits = (k_bits, v_bits)[side]
                size = side_bytes(bits, d)
                codes = side_at(addresses[i], at, size)
                _side(bits, codes, side == 0, halves[side], units[side], room, out[side, head, tokens])
                at += size


@njit(error_model="numpy", cache=True)
def _side(bits, address, keys, half, unit, room, out):
    """One side of a page, keys [d][32] or values [32][d], to out (32, d); `half` is of the codes of a word."""
    d = out.shape[1]
    k, n = (d, PAGE) if keys else (PAGE, d)
    unpack(bits, address, k, n, room.ctypes.data)
    if bits > CODED:
        values = room.reshape(k, n)
        out[:] = values.T if keys else values
    else:
        pairs = room[: k * n // 2].view(np.int16).reshape(k // 2, n, 2)
        scales = _scales(address + side_bytes(bits, d) - 2 * PAGE)
        for row in range(k // 2):
            first = row // half * 2 * half + row % half
            for j in range(n):
                for s in range(2):
                    token, place = (j, first + s * half) if keys else (first + s * half, j)
                    out[token, place] = np.float32(pairs[row, j, s]) * unit * scales[token]
    keep(room)


@njit(error_model="numpy", cache=True)
def _scales(address):
    """(32,) float32 of the bfloat16 scales of a side."""
    out, halves = np.empty(PAGE, np.uint32), carray(pointer(address), (PAGE,), np.uint16)
    for t in range(PAGE):
        out[t] = np.uint32(halves[t]) << np.uint32(16)
    return out.view(np.float32)
