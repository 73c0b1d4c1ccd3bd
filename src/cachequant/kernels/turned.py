"""Queries in the basis of coded keys, as attention over codes takes them."""

import numpy as np
from numba import njit

from cachequant.kernels.codebooks import CODED, unit_of_bits
from cachequant.kernels.encode import basis_of, numbers_of
from cachequant.kernels.folds import row_dot, row_magnitude
from cachequant.kernels.tiles import RAISED, WIDE, product
from cachequant.kernels.views import floats
from cachequant.kernels.whole import whole_numbers

FEW = 3  # rows for which codes are looked up on the way, not unpacked before
EXTRA = 3  # numbers behind a query in the coded basis: its step (or 1), the score of the means, what raising cost
WHOLE = 127 * 256 + 127  # largest whole number that a query or a weight becomes: two signed bytes
_UNITS = unit_of_bits()


@njit(inline="always")
def _top(d):
    """Largest whole number of a query, such that no sum of d products with 8-bit levels leaves int32."""
    return min(WHOLE, (2**31 - 1) // (127 * d))


@njit(inline="always")
def looked_up(rows):
    """Whether that many queries of a chunk on one head meet codes that are looked up on the way."""
    return rows <= FEW


@njit(error_model="numpy", cache=True)
def turn_token(q, layer, head, group, d, scale, coding, few, out):
    """The queries of one key head (group, d) for its coded keys, d + EXTRA numbers each, at addresses.

    For codes: d whole numbers (see `kernels.whole`) in the place of d / 2 floats; else d floats. Behind them, from d
    on, stand what one unit is worth, the score of the means, and an int32: what raised levels add to a sum, negated.

    few : see `looked_up`.
    """
    bits, _, _ = numbers_of(coding, layer)
    means, _, matrix = basis_of(coding, layer, head, 0, d)
    turned = np.empty(d, np.float32)
    for g in range(group):
        row, result = floats(q + g * d * 4, d), floats(out + g * (d + EXTRA) * 4, d + EXTRA)
        bias, step, total = np.float32(0), np.float32(1), np.int32(0)
        if bits > CODED:
            for i in range(d):
                result[i] = row[i] * np.float32(scale)
        else:
            at, bias = np.int64(turned.ctypes.data), row_dot(q + g * d * 4, means, d)
            product(1, 4, WIDE, 1, 1, 0, q + g * d * 4, matrix, d, at, d, d, d, 0)
            for i in range(d):
                turned[i] *= np.float32(scale)
            largest = row_magnitude(at, d)
            top = np.float32(_top(d))
            factor, to = top / largest if largest > 0 else np.float32(0), out + g * (d + EXTRA) * 4
            if few:
                total = whole_numbers(True, bits, at, d, factor, to)
            else:
                whole_numbers(False, bits, at, d, factor, to)
            step = largest / top * _UNITS[bits]
        result[d], result[d + 1] = step, bias * np.float32(scale)
        result[d + 2 : d + 3].view(np.int32)[0] = -RAISED * total
