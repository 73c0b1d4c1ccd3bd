"""Which rows of a tile read a page, and how; and pages that are asked for before they are read."""

from numba import njit

from cachequant.kernels.coded import side_bytes
from cachequant.kernels.ir import LINE, prefetch
from cachequant.kernels.slab import side_at
from cachequant.kernels.tiles import PAGE

AHEAD = 6  # sides of coded pages from the one that is read to the one that is fetched


@njit(inline="always")
def rows_before(position, first, rows, group):
    """How many rows of the tile stand before a position."""
    return min(max(position * group - first, 0), rows)


@njit(inline="always")
def readers(page, first, rows, group, begin, coded):
    """(first row of the tile that reads a page of the segment exactly, row behind the last one that does); those behind
    it read its codes."""
    position, cut = begin + page * PAGE, rows
    if coded.size and coded[begin // PAGE + page]:
        cut = rows_before(position + PAGE, first, rows, group)
    return rows_before(position, first, rows, group), cut


@njit(inline="always")
def next_exact(page, length, first, rows, group, begin, coded):
    """The next of the segment's pages, from one on, that some row reads exactly; `length` if there is none."""
    while page < length:
        low, cut = readers(page, first, rows, group, begin, coded)
        if low < cut:
            break
        page += 1
    return page


@njit(inline="always")
def fetch_side(index, values_too, coded, places, d):
    """Ask for the codes of the keys of a page, or of its values, long before they are read."""
    _, _, k_bits, v_bits, k_codes, v_codes = places
    if coded.size and index < coded.size and coded[index]:
        at, count = (v_codes, side_bytes(v_bits, d)) if values_too else (k_codes, side_bytes(k_bits, d))
        prefetch(side_at(coded[index], at, count), count)


@njit(inline="always")
def part_of(size, steps):
    """Bytes of the parts into which the steps of a loop share something larger: whole cache lines."""
    return (size + steps * LINE - 1) // (steps * LINE) * LINE


@njit(inline="always")
def fetch_part(address, part, size, step):
    """Ask for one of those parts; nothing for the address 0."""
    if address and step * part < size:
        prefetch(address + step * part, part)
