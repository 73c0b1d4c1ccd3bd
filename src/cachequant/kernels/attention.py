"""Causal attention over pages of keys and values, with exact softmax in fixed order.

One page holds 32 tokens of every layer; per layer K[kv_heads][d][32], so that the scores of 8 tokens are one vector,
then V[kv_heads][32][d], so that 8 output dimensions are one vector; float32, contiguous. A query's softmax is cut only
at absolute multiples of 256 tokens: each segment gives its maximum m, sum l and output o, and segments are folded in
ascending order with the rescaling of online softmax (Milakov & Gimelshein 2018, section 3; FlashAttention, Dao et al.
2022, section 3.1). Nothing in that order depends on the chunk, the tile or the threads, so neither do the bits.

A page may also have codes (`kernels.encode`): queries on later pages read those, queries on the page itself its exact
rows. Queries are brought into the coded basis once, values are summed in it and brought back once a row.

Kernels take plain arrays and check nothing.
"""

import numpy as np
from numba import carray, float64, get_num_threads, int64, njit, prange

from cachequant.kernels.codebooks import CODED
from cachequant.kernels.coded import round_half, side_bytes, unpack_side
from cachequant.kernels.encode import ROUNDED, basis_of, encode_head, numbers_of
from cachequant.kernels.ir import exp, fetch_add, fma, pointer, row_sum
from cachequant.kernels.lazy import ADDRESSES, STRIDED, VECTOR, compile_once
from cachequant.kernels.tiles import PAGE, SEGMENT, product, softmax
from cachequant.kernels.views import floats, keep

FINISHED = 1  # place of the counter of finished tiles
TILE = 48  # query rows (position, head of the group) that share one pass over the pages
SERIAL = 1 << 17  # multiply-adds below which waking a second thread costs more than it saves
STATS = 4  # floats of a row beside its output: maximum, sum, and the part of the sum that read codes
NO_PARTS, NO_COUNTERS, NO_CODES = np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
SIGNATURE = STRIDED, STRIDED, ADDRESSES, ADDRESSES, ADDRESSES, int64, int64, int64, float64, STRIDED


@njit(inline="always")
def _micro(left):
    """Rows of the next register tile: 6, 3 or 1 (each shape is compiled, so there are few)."""
    return 6 if left >= 6 else 3 if left >= 3 else 1


@njit(error_model="numpy", cache=True)
def _scores(rows, q, keys, d, s):
    """Scores of `rows` queries, packed [d][rows], against one page."""
    if rows == 6:
        product(6, 2, 1, 6, 0, q, keys, PAGE, s, SEGMENT, d, PAGE)
    elif rows == 3:
        product(3, 4, 1, 3, 0, q, keys, PAGE, s, SEGMENT, d, PAGE)
    else:
        product(1, 4, 1, 1, 0, q, keys, PAGE, s, SEGMENT, d, PAGE)


@njit(error_model="numpy", cache=True)
def _values(rows, p, values, d, o, tokens):
    """Add `tokens` rows of values, weighted by p, to the outputs."""
    if rows == 6:
        product(6, 2, SEGMENT, 1, 1, p, values, d, o, d, tokens, d)
    elif rows == 3:
        product(3, 4, SEGMENT, 1, 1, p, values, d, o, d, tokens, d)
    else:
        product(1, 4, SEGMENT, 1, 1, p, values, d, o, d, tokens, d)


@njit(error_model="numpy", cache=True)
def _widen(address, out):
    """32 bfloat16 scales as float32."""
    bits, target = carray(pointer(address), (PAGE,), np.uint16), carray(pointer(out), (PAGE,), np.uint32)
    for t in range(PAGE):
        target[t] = np.uint32(bits[t]) << np.uint32(16)


@njit(error_model="numpy", cache=True)
def _side(bits, codes, k, n, d, levels, scales):
    """The levels of one side of a coded page, and the scales of its vectors."""
    unpack_side(bits, codes, k, n, levels)
    if bits <= CODED:
        _widen(codes + side_bytes(bits, d) - 2 * PAGE, scales)
    else:
        floats(scales, PAGE)[:] = 1


@njit(error_model="numpy", cache=True)
def _rescale(scores, scales, bias, out):
    """out = scores * scales + bias for the 32 tokens of a page."""
    x, y, z = floats(scores, PAGE), floats(scales, PAGE), floats(out, PAGE)
    for t in range(PAGE):
        z[t] = fma(x[t], y[t], bias)


@njit(error_model="numpy", cache=True)
def _coded_scores(r, m, first, group, end, turned, biases, levels, scales, d, spare, target):
    """Scores of those of m query rows that stand at `end` or later against a coded page."""
    _scores(m, turned + r * d * 4, levels, d, spare)
    bias = floats(biases, r + m)
    for i in range(m):
        if (first + r + i) // group >= end:
            at = i * SEGMENT * 4
            _rescale(spare + at, scales, bias[r + i], target + at)


@njit(error_model="numpy", cache=True)
def _weigh(weights, scales, seen):
    """Multiply the weights of a page by the scales of its values, and add their sum to what was read from codes."""
    total, w, y = floats(seen, 1), floats(weights, PAGE), floats(scales, PAGE)
    total[0] += row_sum(weights, PAGE)
    for t in range(PAGE):
        w[t] *= y[t]


@njit(error_model="numpy", cache=True)
def _segment(panels, first, rows, group, segment, pages, coded, places, d, s, o, stats):
    """One segment for `rows` query rows; row r stands at position (first + r) // group and reads nothing after it.

    panels : addresses of the packed queries, of those in the coded basis, of their biases, and of room for the levels
        of a page, its scales and the scores of one tile.
    places : offsets of the head's keys and values in an exact page; bits, and offsets in the codes, of both sides.
    s, o, stats : addresses of the score buffer (rows, 256), the outputs (rows, d), twice that with codes, and the
        statistics. Rows before the segment are left alone.
    """
    q, turned, biases, levels, scales, spare = panels
    keys, values, k_bits, v_bits, k_codes, v_codes = places
    begin = segment * SEGMENT
    count = min((first + rows - 1) // group + 1 - begin, SEGMENT)  # tokens that the last row sees
    for j in range(0, count, PAGE):
        index, end = (begin + j) // PAGE, begin + j + PAGE
        codes = coded[index] if coded.size else 0
        page, unpacked, r = pages[index] + keys, False, 0
        while r < rows:
            m = _micro(rows - r)
            low, high, target = (first + r) // group, (first + r + m - 1) // group, s + (r * SEGMENT + j) * 4
            if high >= begin + j and (not codes or low < end):
                _scores(m, q + r * d * 4, page, d, target)
            if codes and high >= end:
                if not unpacked:
                    _side(k_bits, codes + k_codes, d, PAGE, d, levels, scales)
                    unpacked = True
                _coded_scores(r, m, first, group, end, turned, biases, levels, scales, d, spare, target)
            r += m
    floats(o, rows * d)[:] = 0
    rotated, numbers = o + TILE * d * 4, floats(stats, rows * STATS)
    if coded.size:
        floats(rotated, rows * d)[:] = 0
    for r in range(rows):
        seen = min((first + r) // group + 1 - begin, SEGMENT)
        if seen > 0:
            row, blocks = s + r * SEGMENT * 4, (seen + PAGE - 1) // PAGE
            floats(row + seen * 4, blocks * PAGE - seen)[:] = -np.inf
            softmax(row, blocks, stats + r * STATS * 4)
            numbers[r * STATS + 2] = 0
    for j in range(0, count, PAGE):
        index, end = (begin + j) // PAGE, begin + j + PAGE
        codes = coded[index] if coded.size else 0
        page, unpacked, r = pages[index] + values, False, 0
        while r < rows:
            m = _micro(rows - r)
            low, high = (first + r) // group, (first + r + m - 1) // group
            if codes and high >= end:
                if not unpacked:
                    _side(v_bits, codes + v_codes, PAGE, d, d, levels, scales)
                    unpacked = True
                for i in range(r, r + m):
                    if (first + i) // group >= end:
                        weights = s + (i * SEGMENT + j) * 4
                        _weigh(weights, scales, stats + (i * STATS + 2) * 4)
                        if low < end:
                            _values(1, weights, levels, d, rotated + i * d * 4, PAGE)
                if low >= end:
                    _values(m, s + (r * SEGMENT + j) * 4, levels, d, rotated + r * d * 4, PAGE)
            if not codes or low < end:
                shared = min(max(low + 1 - begin - j, 0), PAGE)  # tokens of the page that all m rows see
                if shared > 0 and (not codes or high < end):
                    _values(m, s + (r * SEGMENT + j) * 4, page, d, o + r * d * 4, shared)
                else:
                    shared = 0
                for i in range(r, r + m):
                    position = (first + i) // group
                    more = min(position + 1 - begin - j, PAGE) - shared
                    if more > 0 and (not codes or position < end):
                        at = page + shared * d * 4
                        _values(1, s + (i * SEGMENT + j + shared) * 4, at, d, o + i * d * 4, more)
            r += m


@njit(error_model="numpy", cache=True)
def _fold(o, stats, total, sums, d, sides):
    """Add one row's segment (o, m, l) to its running (total, m, l); with two sides, the part in the coded basis too."""
    part, whole = floats(stats, STATS), floats(sums, STATS)
    first = part[0] > whole[0]
    a = exp(whole[0] - part[0]) if first else exp(part[0] - whole[0])
    for i in (1, 2):
        whole[i] = fma(whole[i], a, part[i]) if first else fma(part[i], a, whole[i])
    if first:
        whole[0] = part[0]
    for side in range(sides):
        x, y = floats(o + side * TILE * d * 4, d), floats(total + side * TILE * d * 4, d)
        if first:
            for i in range(d):
                y[i] = fma(y[i], a, x[i])
        else:
            for i in range(d):
                y[i] = fma(x[i], a, y[i])


@njit(error_model="numpy", cache=True)
def _pack(q, stride, offset, width, first, rows, group, start, scale, d, panel):
    """Scale the query rows, `width` apart from an offset in each token, and lay them out [d][rows of the tile]."""
    factor, r = np.float32(scale), 0
    while r < rows:
        m = _micro(rows - r)
        out = floats(panel + r * d * 4, m * d)
        for i in range(m):
            at = first + r + i
            row = floats(q + (at // group - start) * stride + offset + at % group * width * 4, d)
            for k in range(d):
                out[k * m + i] = row[k] * factor
        r += m


@njit(error_model="numpy", cache=True)
def _write(total, sums, out, stride, head, first, rows, group, start, d, bits, means, matrix):
    """Bring what was summed in the coded basis back, divide by the sums and store the rows where they belong.

    bits : of the coded values, 0 for none.
    """
    for r in range(rows):
        stats, exact, rotated = floats(sums + r * STATS * 4, STATS), total + r * d * 4, total + (TILE + r) * d * 4
        if bits > CODED:
            o, more = floats(exact, d), floats(rotated, d)
            for i in range(d):
                o[i] += more[i]
        elif bits:
            o, mean = floats(exact, d), floats(means, d)
            for i in range(d):
                o[i] = fma(stats[2], mean[i], o[i])
            product(1, 4, 1, 1, 1, rotated, matrix, d, exact, d, d, d)
        at, weight = first + r, np.float32(1) / stats[1]
        row = floats(out + (at // group - start) * stride + (head * group + at % group) * d * 4, d)
        o = floats(exact, d)
        for i in range(d):
            row[i] = o[i] * weight


@njit(error_model="numpy", cache=True)
def turn_token(q, layer, head, group, d, scale, coding, out):
    """The queries of one key head (group, d) for its coded keys: group rows of d values and the score of the means.

    Both are addresses; rows of `out` are d + 1 apart.
    """
    bits, _, _ = numbers_of(coding, layer)
    means, _, matrix = basis_of(coding, layer, head, 0, d)
    for g in range(group):
        row, to = floats(q + g * d * 4, d), out + g * (d + 1) * 4
        result, mean = floats(to, d + 1), floats(means, d)
        bias = np.float32(0)
        if bits > CODED:
            result[:d] = row
        else:
            for i in range(d):
                bias = fma(row[i], mean[i], bias)
            product(1, 4, 1, 1, 0, q + g * d * 4, matrix, d, to, d, d, d)
        result[d] = bias * np.float32(scale)


@njit(error_model="numpy", cache=True, nogil=True)
def work(q, turned, pages, coded, coding, layer, start, kv_heads, scale, out, parts, counters):
    """Take jobs until none is left. With `parts` a job is one segment of one tile, else all segments of one tile.

    `counters` is shared by the threads: the next job, how many tiles are finished, then how many segments of each tile
    are. Without it there is one thread. `turned` (T, heads, d + 1) is what `turn_token` wrote, empty without codes.
    """
    tokens, heads, d = q.shape
    group, threads = heads // kv_heads, counters.size > 0
    every, tiles = tokens * group, (tokens * group + TILE - 1) // TILE
    segments = (start + tokens - 1) // SEGMENT + 1
    split, sides = parts.size > 0, 2 if coded.size else 1
    jobs = kv_heads * tiles * (segments if split else 1)
    queue, job = np.int64(counters.ctypes.data), -1
    if threads and counters[0] >= jobs:
        return
    block = TILE * (sides * d + STATS) * 4
    room = TILE * (sides * d + SEGMENT) + (TILE + d * PAGE + PAGE + 6 * SEGMENT if coded.size else 0)
    scratch = np.empty(room + (0 if split else 2 * block // 4), np.float32)
    panel = np.int64(scratch.ctypes.data)
    s = panel + TILE * sides * d * 4
    biases = s + TILE * SEGMENT * 4
    levels = biases + TILE * 4
    scales = levels + d * PAGE * 4
    panels = panel, panel + TILE * d * 4, biases, levels, scales, scales + PAGE * 4
    k_bits, v_bits, offset = numbers_of(coding, layer) if coded.size else (0, 0, 0)
    k_bytes, v_bytes = side_bytes(k_bits, d), side_bytes(v_bits, d)
    while True:
        job = fetch_add(queue) if threads else job + 1
        if job >= jobs:
            break
        unit, segment = (job // segments, job % segments) if split else (job, 0)
        head, index = unit % kv_heads, tiles - 1 - unit // kv_heads  # the longest first
        rows, first = min(every - index * TILE, TILE), start * group + index * TILE
        keys = (layer * 2 * kv_heads + head) * d * PAGE * 4
        k_codes = offset + head * (k_bytes + v_bytes)
        places = keys, keys + kv_heads * d * PAGE * 4, k_bits, v_bits, k_codes, k_codes + k_bytes
        _pack(
            np.int64(q.ctypes.data), q.strides[0], head * group * d * 4, d, first, rows, group, start, scale, d, panel
        )
        means, matrix = np.int64(0), np.int64(0)
        if coded.size:
            base = np.int64(turned.ctypes.data)
            _pack(
                base, turned.strides[0], head * group * (d + 1) * 4, d + 1, first, rows, group, start, scale, d,
                panels[1],
            )  # fmt: skip
            bias = floats(biases, rows)
            for r in range(rows):
                at = first + r
                bias[r] = turned[at // group - start, head * group + at % group, d]
            means, _, matrix = basis_of(coding, layer, head, 1, d)
        last = min(segments, ((first + rows - 1) // group) // SEGMENT + 1)
        total = np.int64(parts.ctypes.data) + unit * segments * block if split else panel + room * 4
        sums = total + TILE * sides * d * 4
        if split:
            o = total + segment * block
            if segment < last:
                stats = o + TILE * sides * d * 4
                _segment(panels, first, rows, group, segment, pages, coded, places, d, s, o, stats)
            if fetch_add(queue + (FINISHED + 1 + unit) * 8) + 1 < segments:
                continue  # the thread that finishes the last segment folds them all
        for i in range(last):
            o = total + i * block if split else total + (block if i else 0)
            stats = o + TILE * sides * d * 4
            if not split:
                _segment(panels, first, rows, group, i, pages, coded, places, d, s, o, stats)
            for r in range(rows if i else 0):
                if (first + r) // group >= i * SEGMENT:
                    at = r * STATS * 4
                    _fold(o + r * d * 4, stats + at, total + r * d * 4, sums + at, d, sides)
        _write(
            total, sums, np.int64(out.ctypes.data), out.strides[0], head, first, rows, group, start, d, v_bits, means,
            matrix,
        )  # fmt: skip
        if threads:
            fetch_add(queue + FINISHED * 8)
    keep(scratch)


@njit(cache=True)
def shares(tokens, heads, kv_heads, d, start, threads, sides):
    """(tiles of all heads, floats of their parts): few tiles and many segments are shared by segments, which need room
    for their parts; the result is the same either way. `sides` is 2 with codes, else 1."""
    units = kv_heads * ((tokens * (heads // kv_heads) + TILE - 1) // TILE)
    segments = (start + tokens - 1) // SEGMENT + 1
    return units, units * segments * TILE * (sides * d + STATS) if segments > 1 and units < 4 * threads else 0


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def _attend(q, turned, pages, coded, coding, layer, start, kv_heads, scale, out, threads):
    tokens, heads, d = q.shape
    units, room = shares(tokens, heads, kv_heads, d, start, threads, 2 if coded.size else 1)
    parts, counters = np.empty(room, np.float32), np.zeros(FINISHED + 1 + units, np.int64)
    for _ in prange(threads):
        work(q, turned, pages, coded, coding, layer, start, kv_heads, scale, out, parts, counters)


@njit(error_model="numpy", cache=True, nogil=True)
def _turn(q, layer, kv_heads, scale, coding, out):
    tokens, heads, d = q.shape
    group = heads // kv_heads
    for t in range(tokens):
        for head in range(kv_heads):
            row = np.int64(q.ctypes.data) + t * q.strides[0] + head * group * d * 4
            to = np.int64(out.ctypes.data) + t * out.strides[0] + head * group * (d + 1) * 4
            turn_token(row, layer, head, group, d, scale, coding, to)


def attend(q, pages, layer, start, kv_heads, scale, out, coded=NO_CODES, coding=NO_CODES):
    """Causal attention of a chunk of queries over everything stored before and with them.

    Parameters
    ----------
    q : (T, heads, d) float32; rows may be strided, each (heads, d) contiguous. Query i stands at position start + i and
        sees positions 0 .. start + i. Head h reads the keys of head h // (heads // kv_heads).
    pages : (P,) int64 base addresses of pages that hold start + T tokens of all layers.
    layer : which layer of the pages.
    start : absolute position of the first query.
    kv_heads : heads of the pages.
    scale : multiplies the scores, usually d ** -0.5.
    out : (T, heads, d) float32, written; rows may be strided.
    coded : (P,) int64 base addresses of the codes of the pages, 0 for a page without; empty if there are none at all.
    coding : how they are coded, see `kernels.encode`.
    """
    tokens, heads, d = q.shape
    turned = np.empty((tokens if coded.size else 0, heads, d + 1), np.float32)
    if coded.size:
        if not _turn.overloads:
            compile_once(_turn, STRIDED, int64, int64, float64, ADDRESSES, STRIDED)
        _turn(q, layer, kv_heads, scale, coding, turned)
    if tokens * (start + tokens) * heads * d < SERIAL:
        if not work.overloads:
            compile_once(work, *SIGNATURE, VECTOR, ADDRESSES)
        work(q, turned, pages, coded, coding, layer, start, kv_heads, scale, out, NO_PARTS, NO_COUNTERS)
    else:
        if not _attend.overloads:
            compile_once(_attend, *SIGNATURE, int64)
        _attend(q, turned, pages, coded, coding, layer, start, kv_heads, scale, out, get_num_threads())


@njit(error_model="numpy", cache=True)
def append_token(k, v, page, layer, kv_heads, head, d, place, k_half, v_half):
    """Write the key and the value at two addresses to a place in a page, rounded to float16 where that is said."""
    page += layer * 2 * kv_heads * d * PAGE * 4
    keys, row = floats(page + head * d * PAGE * 4, d * PAGE), floats(k, d)
    for i in range(d):
        keys[i * PAGE + place] = round_half(row[i]) if k_half else row[i]
    values, row = floats(page + ((kv_heads + head) * PAGE + place) * d * 4, d), floats(v, d)
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
    pages : (P,) int64 base addresses of pages with room for start + T tokens of all layers.
    layer : which layer of the pages.
    start : absolute position of the first row.
    coded, coding : as for `attend`.
    """
    if not _append.overloads:
        compile_once(_append, STRIDED, STRIDED, ADDRESSES, ADDRESSES, ADDRESSES, int64, int64)
    _append(k, v, pages, coded, coding, layer, start)
