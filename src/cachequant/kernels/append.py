"""Keys and values of new tokens into their pages, and codes of the pages that they fill."""

import numpy as np
from numba import int64, njit

from cachequant.kernels.encode import ROUNDED, encode_head, numbers_of
from cachequant.kernels.ir import round_half
from cachequant.kernels.lazy import ADDRESSES, STRIDED, compile_once
from cachequant.kernels.slab import side_at
from cachequant.kernels.tiles import PAGE
from cachequant.kernels.views import floats

NO_CODES = np.empty(0, np.int64)


@njit(error_model="numpy", cache=True)
def append_token(k, v, page, layer, kv_heads, head, d, place, k_half, v_half):
    """Write the key and the value at two addresses to a place in a page, rounded to float16 where that is said."""
    size = d * PAGE * 4
    side = layer * 2 * kv_heads + head
    keys, row = floats(side_at(page, side * size, size), d * PAGE), floats(k, d)
    for i in range(d):
        keys[i * PAGE + place] = round_half(row[i]) if k_half else row[i]
    values, row = floats(side_at(page, (side + kv_heads) * size, size) + place * d * 4, d), floats(v, d)
    for i in range(d):
        values[i] = round_half(row[i]) if v_half else row[i]


@njit(error_model="numpy", cache=True)
def append_page(k, k_stride, v, v_stride, page, first, end, pages, coded, coding, layer, kv_heads, head, d):
    """Write tokens first <= t < end of one head, which lie on one page, and code the page when it is full.

    k, v : addresses of the rows of token `first`, k_stride and v_stride bytes apart.
    """
    k_half = v_half = False
    if coding.size and coding[ROUNDED]:
        k_bits, v_bits, _ = numbers_of(coding, layer)
        k_half, v_half = k_bits == 16, v_bits == 16
    for t in range(first, end):
        i = t - first
        append_token(
            k + i * k_stride, v + i * v_stride, pages[page], layer, kv_heads, head, d, t % PAGE, k_half, v_half
        )  # fmt: skip
    if coded.size and coded[page] and end % PAGE == 0:
        encode_head(pages[page], coded[page], layer, kv_heads, head, d, coding)


@njit(error_model="numpy", cache=True, nogil=True)
def _append(k, v, pages, coded, coding, layer, start):
    tokens, kv_heads, d = k.shape
    for page in range(start // PAGE, (start + tokens - 1) // PAGE + 1):
        first, end = max(start, page * PAGE), min(start + tokens, (page + 1) * PAGE)
        for head in range(kv_heads):
            key = np.int64(k.ctypes.data) + (first - start) * k.strides[0] + head * d * 4
            value = np.int64(v.ctypes.data) + (first - start) * v.strides[0] + head * d * 4
            append_page(
                key, k.strides[0], value, v.strides[0], page, first, end, pages, coded, coding, layer, kv_heads, head, d
            )  # fmt: skip


def append(k, v, pages, layer, start, coded=NO_CODES, coding=NO_CODES):
    """Write the keys and values of a chunk into its pages, and code the pages that it fills.

    Parameters
    ----------
    k, v : (T, kv_heads, d) float32; rows may be strided, each (kv_heads, d) contiguous.
    pages : (P,) int64 pages (see `kernels.slab`) with room for start + T tokens of all layers.
    layer : which layer of the pages.
    start : absolute position of the first row.
    coded, coding : as for `attention.attend`.
    """
    if not _append.overloads:
        compile_once(_append, STRIDED, STRIDED, ADDRESSES, ADDRESSES, ADDRESSES, int64, int64)
    _append(k, v, pages, coded, coding, layer, start)
