"""Where the sides of a page are.

Pages lie interleaved, in slabs of 1, 2, 4 or 8: the keys of one head in all pages of a slab are one piece of memory,
then its values, and so on. Attention reads a head of one page after the other, and the processor's own prefetchers keep
up with long runs, where they would start again after every jump over the other heads.

The kernels know a page by one number: the address of its slab, a multiple of 64, plus its place in the slab, plus 8
times the binary logarithm of the slab's pages. A page alone in its slab is known by its address.
"""

import numpy as np
from numba import boolean, int64, njit

from cachequant.kernels.lazy import ADDRESSES, compile_once
from cachequant.kernels.views import numbers

ALIGN = 64  # bytes
INTERLEAVED = 8  # pages of the largest slab


def number(slab: int, place: int, pages: int) -> int:
    """What the kernels know a page by; `slab` is the address of a slab of `pages` pages, a power of two."""
    return slab + place + INTERLEAVED * (pages.bit_length() - 1)


@njit(inline="always")
def side_at(page, offset, size):
    """Address of one side of a page; `offset` are the bytes of a page that come before it, `size` its own."""
    return (page & -ALIGN) + (offset << (page % ALIGN // INTERLEAVED)) + page % INTERLEAVED * size


@njit(error_model="numpy", cache=True, nogil=True)
def _copy(page, sizes, first, last, inside, memory):
    """Some sides of a page to an address, or what is there into the page; zeros for the address 0."""
    offset = 0
    for i in range(last):
        if i >= first:
            side = numbers(side_at(page, offset, sizes[i]), sizes[i] // 8)
            if memory:
                other = numbers(memory, sizes[i] // 8)
                memory += sizes[i]
                if inside:
                    side[:] = other
                else:
                    other[:] = side
            else:
                side[:] = 0
        offset += sizes[i]


def _copied(*arguments) -> None:
    if not _copy.overloads:
        compile_once(_copy, int64, ADDRESSES, int64, int64, boolean, int64)
    _copy(*arguments)


def read(
    page: int, sizes: np.ndarray, first: int = 0, last: int | None = None, out: np.ndarray | None = None
) -> np.ndarray:
    """Sides `first` to `last` of a page, one behind the other, as (bytes,) uint8: `out`, which is contiguous, or new.

    sizes : (S,) int64 bytes of all sides of a page, in order, each a multiple of 64.
    """
    last = len(sizes) if last is None else last
    if out is None:
        out = np.empty(sizes[first:last].sum(), np.uint8)
    _copied(page, sizes, first, last, False, out.ctypes.data)
    return out


def write(page: int, sizes: np.ndarray, content: np.ndarray) -> None:
    """Fill a page with (bytes,) uint8, as `read` gives them."""
    content = np.ascontiguousarray(content)  # by a name that lives until it is copied
    _copied(page, sizes, 0, len(sizes), True, content.ctypes.data)


def clear(page: int, sizes: np.ndarray) -> None:
    """Fill a page with zeros."""
    _copied(page, sizes, 0, len(sizes), True, 0)
