"""One segment of attention: a tile of query rows against the at most eight pages between two cuts of the softmax.

Pages are read in one of two ways. Exact rows meet float32 queries in chains of fused multiply-adds over ascending k.
Codes meet queries, and weights, that are rounded to 16-bit whole numbers with one step a row (and page), and summed
exactly in int32; the steps, the scales and the unit of the codebook come in at the end. That rounding is 2^-16 of the
largest number, three hundred times below the error of a 4-bit code.
"""

import numpy as np
from numba import njit

from cachequant.kernels.codebooks import CODED, unit_of_bits
from cachequant.kernels.coded import multiply, side_bytes, unpack
from cachequant.kernels.folds import row_sum
from cachequant.kernels.ir import LANES, put
from cachequant.kernels.reading import AHEAD, fetch_part, fetch_side, next_exact, part_of, readers, rows_before
from cachequant.kernels.slab import side_at
from cachequant.kernels.tiles import PAGE, SEGMENT, WIDE, coded_product, product, softmax
from cachequant.kernels.turned import EXTRA, FEW, WHOLE
from cachequant.kernels.views import floats
from cachequant.kernels.whole import page_weights

KEYS = PAGE // WIDE  # vectors of a row of keys
TILE = 48  # query rows (position, head of the group) that share one pass over the pages
STATS = 4  # floats of a row beside its output: maximum, sum, and the part of the sum that read codes
WEIGHTS = PAGE // 2 + 2  # numbers of a row's weights of one page: whole numbers, what one is worth, one unused
ROOM = FEW * SEGMENT // PAGE  # rows of weights at a time: of a segment, or of a register tile
DISTANCE = 1536  # bytes from the exact rows that few queries read to those that are fetched: pages are neighbours
SEEN = 8  # partial sums of the weights that read codes
_UNITS = unit_of_bits()


@njit(inline="always")
def _micro(left):
    """Rows of the next register tile: 6, 3 or 1 (each shape is compiled, so there are few)."""
    return 6 if left >= 6 else 3 if left >= 3 else 1


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
def _exact_scores(rows, q, keys, d, s, ahead):
    """Scores of `rows` queries, packed [d][TILE], against one page; see `tiles.product` for `ahead`."""
    if rows == 6:
        product(6, 2, LANES, 1, TILE, 0, q, keys, PAGE, s, SEGMENT, d, PAGE, ahead)
    elif rows == 3:
        product(3, KEYS, WIDE, 1, TILE, 0, q, keys, PAGE, s, SEGMENT, d, PAGE, ahead)
    else:
        product(1, KEYS, WIDE, 1, TILE, 0, q, keys, PAGE, s, SEGMENT, d, PAGE, ahead)


@njit(error_model="numpy", cache=True)
def _exact_values(rows, p, values, d, o, tokens, ahead):
    """Add `tokens` rows of values, weighted by p, to the outputs; see `tiles.product` for `ahead`."""
    if rows == 6:
        product(6, 2, LANES, SEGMENT, 1, 1, p, values, d, o, d, tokens, d, ahead)
    elif rows == 3:
        product(3, 4, WIDE, SEGMENT, 1, 1, p, values, d, o, d, tokens, d, ahead)
    else:
        product(1, 4, WIDE, SEGMENT, 1, 1, p, values, d, o, d, tokens, d, ahead)


@njit(error_model="numpy", cache=True)
def _coded_scores(bits, rows, turned, codes, levels, d, s):
    """Scores of `rows` queries in the coded basis against a page of codes, whose levels may be there already."""
    width, rest, scales = d + EXTRA, turned + d * 4, codes + side_bytes(bits, d) - 2 * PAGE
    if not levels:
        multiply(True, bits, rows, turned, width, codes, PAGE, scales, rest, width, s, SEGMENT, d)
        return
    if rows == 6:
        coded_product(6, 2, True, turned, width, levels, PAGE, scales, rest, width, s, SEGMENT, d // 2)
    elif rows == 3:
        coded_product(3, 4, True, turned, width, levels, PAGE, scales, rest, width, s, SEGMENT, d // 2)
    else:
        coded_product(1, 4, True, turned, width, levels, PAGE, scales, rest, width, s, SEGMENT, d // 2)


@njit(error_model="numpy", cache=True)
def _coded_values(bits, rows, weights, codes, levels, d, o):
    """Add a page of codes, weighted by whole numbers, to the outputs in the coded basis."""
    step = weights + PAGE // 2 * 4
    if not levels:
        multiply(False, bits, rows, weights, WEIGHTS, codes, d, step, 0, WEIGHTS, o, d, PAGE)
        return
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
        product(6, 2, LANES, d + EXTRA, 1, 0, turned, levels, PAGE, s, SEGMENT, d, PAGE, 0)
    elif rows == 3:
        product(3, KEYS, WIDE, d + EXTRA, 1, 0, turned, levels, PAGE, s, SEGMENT, d, PAGE, 0)
    else:
        product(1, KEYS, WIDE, d + EXTRA, 1, 0, turned, levels, PAGE, s, SEGMENT, d, PAGE, 0)


@njit(error_model="numpy", cache=True)
def _keys(query, first, rows, group, begin, count, pages, coded, places, scratch, d, s):
    """Scores of all rows against `count` tokens from `begin` on: codes first, and exact rows are fetched meanwhile."""
    q, stride, offset, start, scale, turned, few = query
    keys, values, k_bits, _, k_codes, _ = places
    panel, levels, _, _ = scratch
    index, length, size = begin // PAGE, (count + PAGE - 1) // PAGE, d * PAGE * 4
    exact = next_exact(0, length, first, rows, group, begin, coded)
    page, part = side_at(pages[index + exact], keys, size) if exact < length else 0, part_of(size, length)
    for i in range(length if coded.size else 0):
        if i + AHEAD < length:
            fetch_side(index + i + AHEAD, False, coded, places, d)
        elif i + AHEAD < 2 * length:
            fetch_side(index + i + AHEAD - length, True, coded, places, d)
        fetch_part(page, part, size, i)
        _, cut = readers(i, first, rows, group, begin, coded)
        if cut == rows:
            continue
        codes, unpacked = side_at(coded[index + i], k_codes, side_bytes(k_bits, d)), 0
        if not few or k_bits > CODED:
            unpack(k_bits, codes, d, PAGE, levels)
            unpacked = levels
        while cut < rows:
            m, at, to = _micro(rows - cut), turned + cut * (d + EXTRA) * 4, s + (cut * SEGMENT + i * PAGE) * 4
            if k_bits <= CODED:
                _coded_scores(k_bits, m, at, codes, unpacked, d, to)
            else:
                _wide_scores(m, at, levels, d, to)
            cut += m
    if coded.size and exact < length:  # without codes they are packed for all segments
        pack(q, stride, offset, d, first, rows, group, start, scale, d, panel)
    values_next = side_at(pages[index + exact], values, size) if exact < length else 0
    while exact < length:
        low, cut = readers(exact, first, rows, group, begin, coded)
        target, exact = s + exact * PAGE * 4, next_exact(exact + 1, length, first, rows, group, begin, coded)
        following = side_at(pages[index + exact], keys, size) if exact < length else values_next
        ahead = page + DISTANCE if rows <= FEW else following
        while low < cut:
            m = _micro(cut - low)
            _exact_scores(m, panel + low * 4, page, d, target + low * SEGMENT * 4, ahead)
            low += m
        page = following


@njit(inline="always")
def _weigh(few, bits, p, codes, d, seen, out):
    """What multiplies the values of a page of codes for one row of weights p, and what one unit of it is worth."""
    scales = codes + side_bytes(bits, d) - 2 * PAGE
    if few:
        step = page_weights(True, bits, p, scales, seen, np.float32(WHOLE), out)
    else:
        step = page_weights(False, bits, p, scales, seen, np.float32(WHOLE), out)
    put(out, PAGE // 2, step * _UNITS[bits])


@njit(error_model="numpy", cache=True)
def _weigh_pages(bits, first, rows, group, begin, length, coded, codes_at, s, d, seen, weights):
    """`_weigh` for few rows and all pages of a segment: one page after the other would wait for its divisions."""
    size = side_bytes(bits, d)
    for i in range(length):
        position, codes = begin + i * PAGE, coded[begin // PAGE + i]
        for r in range(rows_before(position + PAGE, first, rows, group) if codes else rows, rows):
            p, at = s + (r * SEGMENT + i * PAGE) * 4, weights + (i * FEW + r) * WEIGHTS * 4
            _weigh(True, bits, p, side_at(codes, codes_at, size), d, seen + r * SEEN * 4, at)


@njit(error_model="numpy", cache=True)
def _sums(few, first, rows, group, begin, count, pages, coded, places, after, scratch, d, s, o, rotated):
    """Values of `count` tokens from `begin` on, weighted by what the softmax left, added to the outputs."""
    _, values, _, v_bits, _, v_codes = places
    _, levels, weights, seen = scratch
    page_after, places_after, matrix = after
    index, length, size = begin // PAGE, (count + PAGE - 1) // PAGE, d * PAGE * 4
    if few and coded.size and v_bits <= CODED:
        _weigh_pages(v_bits, first, rows, group, begin, length, coded, v_codes, s, d, seen, weights)
    exact = next_exact(0, length, first, rows, group, begin, coded)
    page = side_at(pages[index + exact], values, size) if exact < length else 0
    part, part_of_matrix = part_of(size, length), part_of(d * d * 4, length)
    for i in range(length if coded.size else 0):
        if i + AHEAD < length:
            fetch_side(index + i + AHEAD, True, coded, places, d)
        else:
            fetch_side(page_after + i + AHEAD - length, False, coded, places_after, d)
        fetch_part(page, part, size, i)
        fetch_part(matrix, part_of_matrix, d * d * 4, i)
        _, cut = readers(i, first, rows, group, begin, coded)
        if cut == rows:
            continue
        codes, p, unpacked = side_at(coded[index + i], v_codes, side_bytes(v_bits, d)), s + i * PAGE * 4, 0
        if not few or v_bits > CODED:
            unpack(v_bits, codes, PAGE, d, levels)
            unpacked = levels
        while cut < rows:
            m, to = _micro(rows - cut), rotated + cut * d * 4
            if v_bits <= CODED:
                at = weights + (i * FEW + cut) * WEIGHTS * 4 if few else weights
                for r in range(0 if few else m):
                    x, y = p + (cut + r) * SEGMENT * 4, seen + (cut + r) * SEEN * 4
                    _weigh(False, v_bits, x, codes, d, y, at + r * WEIGHTS * 4)
                _coded_values(v_bits, m, at, codes, unpacked, d, to)
            else:
                _exact_values(m, p + cut * SEGMENT * 4, levels, d, to, PAGE, levels)
            cut += m
    while exact < length:
        position, p = begin + exact * PAGE, s + exact * PAGE * 4
        low, cut = readers(exact, first, rows, group, begin, coded)
        exact, following = next_exact(exact + 1, length, first, rows, group, begin, coded), page
        if exact < length:
            following = side_at(pages[index + exact], values, size)
        elif not coded.size and page_after < pages.size:
            following = side_at(pages[page_after], places_after[0], size)
        ahead = page + DISTANCE if rows <= FEW else following
        while low < cut:
            m = _micro(cut - low)
            shared = min((first + low) // group + 1 - position, PAGE)  # tokens of the page that all m rows see
            _exact_values(m, p + low * SEGMENT * 4, page, d, o + low * d * 4, shared, ahead)
            for r in range(low, low + m):
                more = min((first + r) // group + 1 - position, PAGE) - shared
                if more > 0:
                    at = p + (r * SEGMENT + shared) * 4
                    _exact_values(1, at, page + shared * d * 4, d, o + r * d * 4, more, ahead)
            low += m
        page = following


@njit(error_model="numpy", cache=True)
def attend_segment(query, first, rows, group, segment, pages, coded, places, after, scratch, d, s, o, rotated, stats):
    """One segment for `rows` query rows; row r stands at position (first + r) // group and reads nothing after it.

    query : address of the queries, bytes between tokens, offset of the head, position of the first, factor of scores,
        address of the tile's queries in the coded basis, and whether those are few (see `turned.looked_up`).
    places : offsets of the head's keys and values in an exact page; bits, and offsets in the codes, of both sides.
    after : what is read behind this segment, to be fetched: the first page, its places, and a (d, d) matrix or 0.
    scratch : addresses of room for packed queries, for the levels of a page, for weights, and for sums of weights.
    s, o, rotated, stats : addresses of the score buffer (rows, 256), of the outputs (rows, d), of those in the coded
        basis, and of the statistics. Rows before the segment are left alone.
    """
    begin, seen = segment * SEGMENT, scratch[3]
    count = min((first + rows - 1) // group + 1 - begin, SEGMENT)  # tokens that the last row sees
    _keys(query, first, rows, group, begin, count, pages, coded, places, scratch, d, s)
    floats(o, rows * d)[:] = 0
    if coded.size:
        floats(rotated, rows * d)[:] = 0
        floats(seen, rows * SEEN)[:] = 0
    for r in range(rows):
        tokens = min((first + r) // group + 1 - begin, SEGMENT)
        if tokens > 0:
            row, blocks = s + r * SEGMENT * 4, (tokens + PAGE - 1) // PAGE
            floats(row + tokens * 4, blocks * PAGE - tokens)[:] = -np.inf
            softmax(row, blocks, stats + r * STATS * 4)
    _sums(query[-1], first, rows, group, begin, count, pages, coded, places, after, scratch, d, s, o, rotated)
    if coded.size:
        numbers = floats(stats, rows * STATS)
        for r in range(rows):
            numbers[r * STATS + 2] = row_sum(seen + r * SEEN * 4, SEEN)
