"""One segment of attention: a tile of query rows against the at most eight pages between two cuts of the softmax.

Pages are read in one of two ways. Exact rows meet float32 queries in chains of fused multiply-adds over ascending k.
Codes meet queries, and weights, that are rounded to 16-bit whole numbers with one step a row (and page), as pairs of
int16 that are summed exactly in int32; the steps, the scales and the unit of the codebook come in at the end. That
rounding is 2^-16 of the largest number, three hundred times below the error of a 4-bit code.
"""

import numpy as np
from numba import carray, njit

from cachequant.kernels.codebooks import CODED, UNITS
from cachequant.kernels.coded import side_bytes, unpack_side, whole_pairs
from cachequant.kernels.encode import basis_of, numbers_of
from cachequant.kernels.ir import fma, pointer, row_max, row_sum
from cachequant.kernels.tiles import PAGE, SEGMENT, coded_product, prefetch, product, softmax
from cachequant.kernels.views import floats

TILE = 48  # query rows (position, head of the group) that share one pass over the pages
STATS = 4  # floats of a row beside its output: maximum, sum, and the part of the sum that read codes
EXTRA = 2  # numbers behind a query in the coded basis: its step (or 1) and the score of the means
WHOLE = 32767  # largest whole number that a query or a weight becomes
WEIGHTS = PAGE // 2 + 2  # numbers of a row's weights of one page: pairs, step, one unused
_UNITS = np.array([UNITS.get(bits, 1.0) for bits in range(CODED + 1)], np.float32)


@njit(inline="always")
def _micro(left):
    """Rows of the next register tile: 6, 3 or 1 (each shape is compiled, so there are few)."""
    return 6 if left >= 6 else 3 if left >= 3 else 1


@njit(inline="always")
def _top(d):
    """Largest whole number of a query, such that no sum of d products with 8-bit levels leaves int32."""
    return min(WHOLE, (2**31 - 1) // (127 * d))


@njit(error_model="numpy", cache=True)
def turn_token(q, layer, head, group, d, scale, coding, out):
    """The queries of one key head (group, d) for its coded keys, d + EXTRA numbers each, at addresses.

    For codes: d / 2 pairs of whole numbers; else d floats. Behind them, from d on, stand what one unit is worth and
    the score of the means.
    """
    bits, _, _ = numbers_of(coding, layer)
    means, _, matrix = basis_of(coding, layer, head, 0, d)
    turned = np.empty(d, np.float32)
    for g in range(group):
        row, result, mean = floats(q + g * d * 4, d), floats(out + g * (d + EXTRA) * 4, d + EXTRA), floats(means, d)
        bias, step = np.float32(0), np.float32(1)
        if bits > CODED:
            for i in range(d):
                result[i] = row[i] * np.float32(scale)
        else:
            for i in range(d):
                bias = fma(row[i], mean[i], bias)
            at, largest = np.int64(turned.ctypes.data), np.float32(0)
            product(1, 4, 1, 1, 0, q + g * d * 4, matrix, d, at, d, d, d)
            for i in range(d):
                turned[i] *= np.float32(scale)
                largest = max(largest, abs(turned[i]))
            step = whole_pairs(bits, at, d, largest, _top(d), out + g * (d + EXTRA) * 4) * _UNITS[bits]
        result[d], result[d + 1] = step, bias * np.float32(scale)


@njit(error_model="numpy", cache=True)
def pack(q, stride, offset, width, first, rows, group, start, scale, d, panel):
    """Scale the query rows, `width` apart from an offset in each token, and lay them out [d][TILE]."""
    factor, out = np.float32(scale), floats(panel, d * TILE)
    for r in range(rows):
        at = first + r
        row = floats(q + (at // group - start) * stride + offset + at % group * width * 4, d)
        for k in range(d):
            out[k * TILE + r] = row[k] * factor


@njit(error_model="numpy", cache=True)
def _exact_scores(rows, q, keys, d, s):
    """Scores of `rows` queries, packed [d][TILE], against one page."""
    if rows == 6:
        product(6, 2, 1, TILE, 0, q, keys, PAGE, s, SEGMENT, d, PAGE)
    elif rows == 3:
        product(3, 4, 1, TILE, 0, q, keys, PAGE, s, SEGMENT, d, PAGE)
    else:
        product(1, 4, 1, TILE, 0, q, keys, PAGE, s, SEGMENT, d, PAGE)


@njit(error_model="numpy", cache=True)
def _exact_values(rows, p, values, d, o, tokens):
    """Add `tokens` rows of values, weighted by p, to the outputs."""
    if rows == 6:
        product(6, 2, SEGMENT, 1, 1, p, values, d, o, d, tokens, d)
    elif rows == 3:
        product(3, 4, SEGMENT, 1, 1, p, values, d, o, d, tokens, d)
    else:
        product(1, 4, SEGMENT, 1, 1, p, values, d, o, d, tokens, d)


@njit(error_model="numpy", cache=True)
def _coded_scores(rows, turned, levels, scales, d, s):
    """Scores of `rows` queries in the coded basis against a page of levels."""
    width = d + EXTRA
    rest = turned + d * 4
    if rows == 6:
        coded_product(6, 2, True, turned, width, levels, PAGE, scales, rest, width, s, SEGMENT, d // 2)
    elif rows == 3:
        coded_product(3, 4, True, turned, width, levels, PAGE, scales, rest, width, s, SEGMENT, d // 2)
    else:
        coded_product(1, 4, True, turned, width, levels, PAGE, scales, rest, width, s, SEGMENT, d // 2)


@njit(error_model="numpy", cache=True)
def _coded_values(rows, weights, levels, d, o):
    """Add a page of levels, weighted by whole numbers, to the outputs in the coded basis."""
    step = weights + PAGE // 2 * 4
    if rows == 6:
        coded_product(6, 2, False, weights, WEIGHTS, levels, d, step, 0, WEIGHTS, o, d, PAGE // 2)
    elif rows == 3:
        coded_product(3, 4, False, weights, WEIGHTS, levels, d, step, 0, WEIGHTS, o, d, PAGE // 2)
    else:
        coded_product(1, 4, False, weights, WEIGHTS, levels, d, step, 0, WEIGHTS, o, d, PAGE // 2)


@njit(error_model="numpy", cache=True)
def _wide_scores(rows, turned, levels, d, s):
    """As `_exact_scores`, for queries as `turn_token` wrote them."""
    if rows == 6:
        product(6, 2, d + EXTRA, 1, 0, turned, levels, PAGE, s, SEGMENT, d, PAGE)
    elif rows == 3:
        product(3, 4, d + EXTRA, 1, 0, turned, levels, PAGE, s, SEGMENT, d, PAGE)
    else:
        product(1, 4, d + EXTRA, 1, 0, turned, levels, PAGE, s, SEGMENT, d, PAGE)


@njit(error_model="numpy", cache=True)
def _widen(address, out):
    """32 bfloat16 scales as float32."""
    bits, target = carray(pointer(address), (PAGE,), np.uint16), carray(pointer(out), (PAGE,), np.uint32)
    for t in range(PAGE):
        target[t] = np.uint32(bits[t]) << np.uint32(16)


@njit(error_model="numpy", cache=True)
def _side(bits, codes, k, n, d, levels, scales):
    """The levels of one side of a coded page, and the scales of its vectors if it has any."""
    unpack_side(bits, codes, k, n, levels)
    if bits <= CODED:
        _widen(codes + side_bytes(bits, d) - 2 * PAGE, scales)


@njit(error_model="numpy", cache=True)
def _weigh(bits, p, scales, seen, spare, weights):
    """What multiplies the levels of a page: its weights p times the scales of its values, as whole numbers.

    `seen` gets the sum of the weights added. All but `bits` are addresses.
    """
    total, w, x, y = floats(seen, 1), floats(spare, PAGE), floats(p, PAGE), floats(scales, PAGE)
    total[0] += row_sum(p, PAGE)
    for t in range(PAGE):
        w[t] = x[t] * y[t]
    step = whole_pairs(bits, spare, PAGE, row_max(spare, PAGE), WHOLE, weights)
    floats(weights, WEIGHTS)[PAGE // 2] = step * _UNITS[bits]


@njit(inline="always")
def _rows_before(position, first, rows, group):
    """How many rows of the tile stand before a position."""
    return min(max(position * group - first, 0), rows)


@njit(error_model="numpy", cache=True)
def _keys(query, first, rows, group, begin, count, pages, coded, places, scratch, d, s):
    """Scores of all rows against `count` tokens from `begin` on."""
    q, stride, offset, start, scale, turned = query
    keys, values, k_bits, v_bits, k_codes, v_codes = places
    panel, levels, scales, _, _ = scratch
    packed = False
    for j in range(0, count, PAGE):
        index = (begin + j) // PAGE
        codes = coded[index] if coded.size else 0
        low = _rows_before(begin + j, first, rows, group)
        cut = _rows_before(begin + j + PAGE, first, rows, group) if codes else rows
        target = s + j * 4
        if j + PAGE < count:  # what comes next, values too
            following = coded[index + 1] if coded.size else 0
            if following:
                prefetch(following + k_codes, v_codes - k_codes + side_bytes(v_bits, d))
            else:
                prefetch(pages[index + 1] + keys, 4 * PAGE * d)
                prefetch(pages[index + 1] + values, 4 * PAGE * d)
        if low < cut and not packed:
            pack(q, stride, offset, d, first, rows, group, start, scale, d, panel)
            packed = True
        while low < cut:
            m = _micro(cut - low)
            _exact_scores(m, panel + low * 4, pages[index] + keys, d, target + low * SEGMENT * 4)
            low += m
        if cut < rows:
            _side(k_bits, codes + k_codes, d, PAGE, d, levels, scales)
        while cut < rows:
            m, at, to = _micro(rows - cut), turned + cut * (d + EXTRA) * 4, target + cut * SEGMENT * 4
            if k_bits <= CODED:
                _coded_scores(m, at, levels, scales, d, to)
            else:
                _wide_scores(m, at, levels, d, to)
            cut += m


@njit(error_model="numpy", cache=True)
def _sums(first, rows, group, begin, count, pages, coded, places, scratch, d, s, o, rotated, stats):
    """Values of `count` tokens from `begin` on, weighted by what the softmax left, added to the outputs."""
    keys, values, k_bits, v_bits, k_codes, v_codes = places
    panel, levels, scales, spare, weights = scratch
    for j in range(0, count, PAGE):
        index = (begin + j) // PAGE
        codes = coded[index] if coded.size else 0
        low = _rows_before(begin + j, first, rows, group)
        cut = _rows_before(begin + j + PAGE, first, rows, group) if codes else rows
        page, p = pages[index] + values, s + j * 4
        while low < cut:
            m = _micro(cut - low)
            shared = min((first + low) // group + 1 - begin - j, PAGE)  # tokens of the page that all m rows see
            _exact_values(m, p + low * SEGMENT * 4, page, d, o + low * d * 4, shared)
            for i in range(low, low + m):
                more = min((first + i) // group + 1 - begin - j, PAGE) - shared
                if more > 0:
                    _exact_values(
                        1, p + (i * SEGMENT + shared) * 4, page + shared * d * 4, d, o + i * d * 4, more
                    )  # fmt: skip
            low += m
        if cut < rows:
            _side(v_bits, codes + v_codes, PAGE, d, d, levels, scales)
        while cut < rows:
            m = _micro(rows - cut)
            if v_bits <= CODED:
                for i in range(m):
                    r = cut + i
                    seen, to = stats + (r * STATS + 2) * 4, weights + i * WEIGHTS * 4
                    _weigh(v_bits, p + r * SEGMENT * 4, scales, seen, spare, to)
                _coded_values(m, weights, levels, d, rotated + cut * d * 4)
            else:
                _exact_values(m, p + cut * SEGMENT * 4, levels, d, rotated + cut * d * 4, PAGE)
            cut += m


@njit(error_model="numpy", cache=True)
def attend_segment(query, first, rows, group, segment, pages, coded, places, scratch, d, s, o, rotated, stats):
    """One segment for `rows` query rows; row r stands at position (first + r) // group and reads nothing after it.

    query : address of the queries, bytes between tokens, offset of the head, position of the first, factor of scores,
        and address of the tile's queries in the coded basis.
    places : offsets of the head's keys and values in an exact page; bits, and offsets in the codes, of both sides.
    scratch : addresses of room for packed queries, for the levels of a page and its scales, 32 floats, and weights.
    s, o, rotated, stats : addresses of the score buffer (rows, 256), of the outputs (rows, d), of those in the coded
        basis, and of the statistics. Rows before the segment are left alone.
    """
    begin = segment * SEGMENT
    count = min((first + rows - 1) // group + 1 - begin, SEGMENT)  # tokens that the last row sees
    _keys(query, first, rows, group, begin, count, pages, coded, places, scratch, d, s)
    floats(o, rows * d)[:] = 0
    if coded.size:
        floats(rotated, rows * d)[:] = 0
    numbers = floats(stats, rows * STATS)
    for r in range(rows):
        seen = min((first + r) // group + 1 - begin, SEGMENT)
        if seen > 0:
            row, blocks = s + r * SEGMENT * 4, (seen + PAGE - 1) // PAGE
            floats(row + seen * 4, blocks * PAGE - seen)[:] = -np.inf
            softmax(row, blocks, stats + r * STATS * 4)
            numbers[r * STATS + 2] = 0
    _sums(first, rows, group, begin, count, pages, coded, places, scratch, d, s, o, rotated, stats)
