"""Causal attention over pages of keys and values, with exact softmax in fixed order.

One page holds 32 tokens of every layer; per layer K[kv_heads][d][32], so that the scores of 8 tokens are one vector,
then V[kv_heads][32][d], so that 8 output dimensions are one vector; float32, contiguous. A query's softmax is cut only
at absolute multiples of 256 tokens: each segment gives its maximum m, sum l and output o, and segments are folded in
ascending order with the rescaling of online softmax (Milakov & Gimelshein 2018, section 3; FlashAttention, Dao et al.
2022, section 3.1). Nothing in that order depends on the chunk, the tile or the threads, so neither do the bits.

Kernels take plain arrays and check nothing.
"""

import numpy as np
from numba import carray, float64, get_num_threads, int64, njit, prange

from cachequant.kernels.ir import exp, fetch_add, fma, pointer
from cachequant.kernels.lazy import ADDRESSES, STRIDED, VECTOR, compile_once
from cachequant.kernels.tiles import PAGE, SEGMENT, product, softmax

FINISHED = 1  # place of the counter of finished tiles
TILE = 48  # query rows (position, head of the group) that share one pass over the pages
SERIAL = 1 << 17  # multiply-adds below which waking a second thread costs more than it saves
NO_PARTS, NO_COUNTERS = np.empty(0, np.float32), np.empty(0, np.int64)
SIGNATURE = STRIDED, ADDRESSES, int64, int64, int64, float64, STRIDED


@njit(inline="always")
def _floats(address, count):
    return carray(pointer(address), (count,), np.float32)


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
def _segment(q, first, rows, group, segment, pages, keys, values, d, s, o, stats):
    """One segment for `rows` query rows; row r stands at position (first + r) // group and reads nothing after it.

    `keys` and `values` are offsets into a page; q, s, o, stats are addresses of the packed queries, the score buffer
    (rows, 256), the outputs (rows, d) and the pairs (m, l). Rows before the segment are left alone.
    """
    begin = segment * SEGMENT
    count = min((first + rows - 1) // group + 1 - begin, SEGMENT)  # tokens that the last row sees
    for j in range(0, count, PAGE):
        page = pages[(begin + j) // PAGE] + keys
        r = 0
        while r < rows:
            m = _micro(rows - r)
            if (first + r + m - 1) // group >= begin + j:
                _scores(m, q + r * d * 4, page, d, s + (r * SEGMENT + j) * 4)
            r += m
    _floats(o, rows * d)[:] = 0
    for r in range(rows):
        seen = min((first + r) // group + 1 - begin, SEGMENT)
        if seen > 0:
            row, blocks = s + r * SEGMENT * 4, (seen + PAGE - 1) // PAGE
            _floats(row + seen * 4, blocks * PAGE - seen)[:] = -np.inf
            softmax(row, blocks, stats + r * 8)
    for j in range(0, count, PAGE):
        page = pages[(begin + j) // PAGE] + values
        r = 0
        while r < rows:
            m = _micro(rows - r)
            shared = min(max((first + r) // group + 1 - begin - j, 0), PAGE)  # tokens of the page that all m rows see
            if shared > 0:
                _values(m, s + (r * SEGMENT + j) * 4, page, d, o + r * d * 4, shared)
            for i in range(r, r + m):
                more = min((first + i) // group + 1 - begin - j, PAGE) - shared
                if more > 0:
                    _values(1, s + (i * SEGMENT + j + shared) * 4, page + shared * d * 4, d, o + i * d * 4, more)
            r += m


@njit(error_model="numpy", cache=True)
def _fold(o, stats, total, sums, d):
    """Add one row's segment (o, m, l) to its running (total, m, l)."""
    part, whole, o, total = _floats(stats, 2), _floats(sums, 2), _floats(o, d), _floats(total, d)
    if part[0] > whole[0]:
        a = exp(whole[0] - part[0])
        whole[0], whole[1] = part[0], fma(whole[1], a, part[1])
        for i in range(d):
            total[i] = fma(total[i], a, o[i])
    else:
        a = exp(part[0] - whole[0])
        whole[1] = fma(part[1], a, whole[1])
        for i in range(d):
            total[i] = fma(o[i], a, total[i])


@njit(error_model="numpy", cache=True)
def _pack(q, stride, head, first, rows, group, start, scale, d, panel):
    """Scale the query rows and lay them out [d][rows of the register tile]."""
    r = 0
    while r < rows:
        m = _micro(rows - r)
        out = _floats(panel + r * d * 4, m * d)
        for i in range(m):
            at = first + r + i
            row = _floats(q + (at // group - start) * stride + (head * group + at % group) * d * 4, d)
            for k in range(d):
                out[k * m + i] = row[k] * scale
        r += m


@njit(error_model="numpy", cache=True)
def _write(total, sums, out, stride, head, first, rows, group, start, d):
    """Divide by the sums and store the rows where they belong."""
    for r in range(rows):
        at, weight = first + r, np.float32(1) / _floats(sums + r * 8, 2)[1]
        row = _floats(out + (at // group - start) * stride + (head * group + at % group) * d * 4, d)
        o = _floats(total + r * d * 4, d)
        for i in range(d):
            row[i] = o[i] * weight


@njit(error_model="numpy", cache=True, nogil=True)
def work(q, pages, layer, start, kv_heads, scale, out, parts, counters):
    """Take jobs until none is left. With `parts` a job is one segment of one tile, else all segments of one tile.

    `counters` is shared by the threads: the next job, how many tiles are finished, then how many segments of each tile
    are. Without it there is one thread.
    """
    tokens, heads, d = q.shape
    group, threads = heads // kv_heads, counters.size > 0
    every, tiles = tokens * group, (tokens * group + TILE - 1) // TILE
    segments = (start + tokens - 1) // SEGMENT + 1
    split = parts.size > 0
    jobs = kv_heads * tiles * (segments if split else 1)
    queue, job = np.int64(counters.ctypes.data), -1
    if threads and counters[0] >= jobs:
        return
    scratch = np.empty(TILE * (d + SEGMENT) + (0 if split else 2 * TILE * (d + 2)), np.float32)
    panel, block = np.int64(scratch.ctypes.data), TILE * (d + 2) * 4
    s = panel + TILE * d * 4
    while True:
        job = fetch_add(queue) if threads else job + 1
        if job >= jobs:
            break
        unit, segment = (job // segments, job % segments) if split else (job, 0)
        head, index = unit % kv_heads, tiles - 1 - unit // kv_heads  # the longest first
        rows, first = min(every - index * TILE, TILE), start * group + index * TILE
        keys = (layer * 2 * kv_heads + head) * d * PAGE * 4
        values = keys + kv_heads * d * PAGE * 4
        _pack(np.int64(q.ctypes.data), q.strides[0], head, first, rows, group, start, np.float32(scale), d, panel)
        last = min(segments, ((first + rows - 1) // group) // SEGMENT + 1)
        total = np.int64(parts.ctypes.data) + unit * segments * block if split else s + TILE * SEGMENT * 4
        sums = total + TILE * d * 4
        if split:
            o = total + segment * block
            if segment < last:
                _segment(panel, first, rows, group, segment, pages, keys, values, d, s, o, o + TILE * d * 4)
            if fetch_add(queue + (FINISHED + 1 + unit) * 8) + 1 < segments:
                continue  # the thread that finishes the last segment folds them all
        for i in range(last):
            o = total + i * block if split else total + (block if i else 0)
            if not split:
                _segment(panel, first, rows, group, i, pages, keys, values, d, s, o, o + TILE * d * 4)
            for r in range(rows if i else 0):
                if (first + r) // group >= i * SEGMENT:
                    _fold(o + r * d * 4, o + (TILE * d + r * 2) * 4, total + r * d * 4, sums + r * 8, d)
        _write(total, sums, np.int64(out.ctypes.data), out.strides[0], head, first, rows, group, start, d)
        if threads:
            fetch_add(queue + FINISHED * 8)


@njit(cache=True)
def shares(tokens, heads, kv_heads, d, start, threads):
    """(tiles of all heads, floats of their parts): few tiles and many segments are shared by segments, which need room
    for their parts; the result is the same either way."""
    units = kv_heads * ((tokens * (heads // kv_heads) + TILE - 1) // TILE)
    segments = (start + tokens - 1) // SEGMENT + 1
    return units, units * segments * TILE * (d + 2) if segments > 1 and units < 4 * threads else 0


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def _attend(q, pages, layer, start, kv_heads, scale, out, threads):
    tokens, heads, d = q.shape
    units, room = shares(tokens, heads, kv_heads, d, start, threads)
    parts, counters = np.empty(room, np.float32), np.zeros(FINISHED + 1 + units, np.int64)
    for _ in prange(threads):
        work(q, pages, layer, start, kv_heads, scale, out, parts, counters)


def attend(q, pages, layer, start, kv_heads, scale, out):
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
    """
    tokens, heads, d = q.shape
    if tokens * (start + tokens) * heads * d < SERIAL:
        if not work.overloads:
            compile_once(work, *SIGNATURE, VECTOR, ADDRESSES)
        work(q, pages, layer, start, kv_heads, scale, out, NO_PARTS, NO_COUNTERS)
    else:
        if not _attend.overloads:
            compile_once(_attend, *SIGNATURE, int64)
        _attend(q, pages, layer, start, kv_heads, scale, out, get_num_threads())


@njit(error_model="numpy", cache=True)
def append_token(k, v, page, layer, kv_heads, head, d, place):
    """Write the key and the value at two addresses to a place in a page."""
    page += layer * 2 * kv_heads * d * PAGE * 4
    keys, row = _floats(page + head * d * PAGE * 4, d * PAGE), _floats(k, d)
    for i in range(d):
        keys[i * PAGE + place] = row[i]
    values, row = _floats(page + ((kv_heads + head) * PAGE + place) * d * 4, d), _floats(v, d)
    for i in range(d):
        values[i] = row[i]


@njit(error_model="numpy", cache=True, nogil=True)
def _append(k, v, pages, layer, start):
    tokens, kv_heads, d = k.shape
    for head in range(kv_heads):
        for t in range(start, start + tokens):
            key = np.int64(k.ctypes.data) + (t - start) * k.strides[0] + head * d * 4
            value = np.int64(v.ctypes.data) + (t - start) * v.strides[0] + head * d * 4
            append_token(key, value, pages[t // PAGE], layer, kv_heads, head, d, t % PAGE)


def append(k, v, pages, layer, start):
    """Write the keys and values of a chunk into its pages.

    Parameters
    ----------
    k, v : (T, kv_heads, d) float32; rows may be strided, each (kv_heads, d) contiguous.
    pages : (P,) int64 base addresses of pages with room for start + T tokens of all layers.
    layer : which layer of the pages.
    start : absolute position of the first row.
    """
    if not _append.overloads:
        compile_once(_append, STRIDED, STRIDED, ADDRESSES, int64, int64)
    _append(k, v, pages, layer, start)
