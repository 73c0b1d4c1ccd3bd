"""Causal attention over pages of keys and values, with exact softmax in fixed order.

One page holds 32 tokens of every layer; per layer K[kv_heads][d][32], so that the scores of 8 tokens are one vector,
then V[kv_heads][32][d], so that 8 output dimensions are one vector; float32. Each such side of a head is contiguous;
`kernels.slab` says where it is. A query's softmax is cut only at absolute multiples of 256 tokens: each segment gives
its maximum m, sum l and output o, and segments are folded in ascending order with the rescaling of online softmax
(Milakov & Gimelshein 2018, section 3; FlashAttention, Dao et al. 2022, section 3.1). Nothing in that order depends on
the chunk, the tile or the threads, so neither do the bits.

A page may also have codes (`kernels.encode`): queries on later pages read those, queries on the page itself its exact
rows. Queries are brought into the coded basis once, values are summed in it and brought back once a row.

Kernels take plain arrays and check nothing.
"""

from functools import cache

import numpy as np
from numba import float64, int64, njit, prange

from cachequant.kernels import get_threads
from cachequant.kernels.append import NO_CODES
from cachequant.kernels.codebooks import CODED
from cachequant.kernels.coded import side_bytes
from cachequant.kernels.encode import basis_of, numbers_of
from cachequant.kernels.ir import exp, fetch_add, fma
from cachequant.kernels.jobs import DONE, TAKEN, counters, take, wait
from cachequant.kernels.lazy import ADDRESSES, STRIDED, compile_once
from cachequant.kernels.segment import ROOM, SEEN, STATS, TILE, WEIGHTS, attend_segment, pack
from cachequant.kernels.tiles import PAGE, SEGMENT, WIDE, product
from cachequant.kernels.turned import EXTRA, looked_up, turn_token
from cachequant.kernels.views import floats, keep

FINISHED = 1  # place of the counter of finished tiles
JOBS = 4  # per thread, at least
SERIAL = 1 << 17  # multiply-adds below which waking a second thread costs more than it saves
ARGUMENTS = ADDRESSES, ADDRESSES, ADDRESSES, int64, int64, int64, float64, STRIDED  # of all functions, behind the rows
SIGNATURE = STRIDED, int64, *ARGUMENTS


@njit(error_model="numpy", cache=True)
def _fold(o, stats, total, sums, d, sides, between):
    """Add one row's segment (o, m, l) to its running (total, m, l); with two sides, the part in the coded basis too,
    which stands `between` bytes further on.
    """
    part, whole = floats(stats, STATS), floats(sums, STATS)
    first = part[0] > whole[0]
    a = exp(whole[0] - part[0]) if first else exp(part[0] - whole[0])
    for i in (1, 2):
        whole[i] = fma(whole[i], a, part[i]) if first else fma(part[i], a, whole[i])
    if first:
        whole[0] = part[0]
    for side in range(sides):
        x, y = floats(o + side * between, d), floats(total + side * between, d)
        if first:
            for i in range(d):
                y[i] = fma(y[i], a, x[i])
        else:
            for i in range(d):
                y[i] = fma(x[i], a, y[i])


@njit(inline="always")
def _fold_rows(o, stats, total, sums, d, sides, between, first, rows, group, segment):
    """`_fold` for the rows of a tile that reach a segment."""
    for r in range(rows):
        if (first + r) // group >= segment * SEGMENT:
            at = r * STATS * 4
            _fold(o + r * d * 4, stats + at, total + r * d * 4, sums + at, d, sides, between)


@njit(error_model="numpy", cache=True)
def _write(total, between, sums, out, stride, head, first, rows, group, start, d, bits, means, matrix):
    """Bring what was summed in the coded basis back, divide by the sums and store the rows where they belong.

    bits : of the coded values, 0 for none.
    """
    for r in range(rows):
        stats, exact = floats(sums + r * STATS * 4, STATS), total + r * d * 4
        rotated = exact + between
        if bits > CODED:
            o, more = floats(exact, d), floats(rotated, d)
            for i in range(d):
                o[i] += more[i]
        elif bits:
            o, mean = floats(exact, d), floats(means, d)
            for i in range(d):
                o[i] = fma(stats[2], mean[i], o[i])
            product(1, 4, WIDE, 1, 1, 1, rotated, matrix, d, exact, d, d, d, 0)
        at, weight = first + r, np.float32(1) / stats[1]
        row = floats(out + (at // group - start) * stride + (head * group + at % group) * d * 4, d)
        o = floats(exact, d)
        for i in range(d):
            row[i] = o[i] * weight


@njit(inline="always")
def _places(layer, kv_heads, head, d, bits, offset):
    """`places` of `attend_segment`; `bits` of keys and values, `offset` of the layer in a page of codes."""
    k_bytes, v_bytes = side_bytes(bits[0], d), side_bytes(bits[1], d)
    keys, k_codes = (layer * 2 * kv_heads + head) * d * PAGE * 4, offset + head * (k_bytes + v_bytes)
    return keys, keys + kv_heads * d * PAGE * 4, bits[0], bits[1], k_codes, k_codes + k_bytes


@njit(error_model="numpy", cache=True, nogil=True)
def work(q, turned, pages, coded, coding, layer, start, kv_heads, scale, out, parts, counters, run):
    """Take jobs until none is left. With `parts` a job is a run of segments of one tile, else all segments of one tile.

    `counters` is shared by the threads: the next job, how many tiles are finished, then how many runs of each tile are.
    Without it there is one thread. `turned` is the address of what `turn_token` wrote, (kv_heads, T * group, d +
    EXTRA); nothing reads it without codes.
    """
    tokens, heads, d = q.shape
    group, threads = heads // kv_heads, counters.size > 0
    every, tiles = tokens * group, (tokens * group + TILE - 1) // TILE
    height, few = min(TILE, every), looked_up(every)  # rows of the largest tile
    segments = (start + tokens - 1) // SEGMENT + 1
    split, sides = parts.size > 0, 2 if coded.size else 1
    runs = (segments + run - 1) // run if split else 1
    jobs = kv_heads * tiles * runs
    queue = np.int64(counters.ctypes.data)
    if threads and counters[0] >= jobs:
        return
    block, between = height * (sides * d + STATS) * 4, height * d * 4
    room = TILE * d + height * SEGMENT + (d * PAGE + ROOM * WEIGHTS + height * SEEN if coded.size else 0)
    memory = np.empty(room + (0 if split else 2 * block // 4), np.float32)
    panel = np.int64(memory.ctypes.data)
    s = panel + TILE * d * 4
    levels = s + height * SEGMENT * 4
    weights = levels + d * PAGE * 4
    scratch = panel, levels, weights, weights + ROOM * WEIGHTS * 4
    k_bits, v_bits, offset = numbers_of(coding, layer) if coded.size else (0, 0, 0)
    following = fetch_add(queue) if threads else 0
    while following < jobs:
        job, unit = following, following // runs
        head, index = unit % kv_heads, tiles - 1 - unit // kv_heads  # the longest first
        rows, first = min(every - index * TILE, TILE), start * group + index * TILE
        places = _places(layer, kv_heads, head, d, (k_bits, v_bits), offset)
        coded_rows = turned + (head * every + index * TILE) * (d + EXTRA) * 4
        query = np.int64(q.ctypes.data), q.strides[0], head * group * d * 4, start, scale, coded_rows, few
        means, matrix = np.int64(0), np.int64(0)
        if coded.size:
            means, _, matrix = basis_of(coding, layer, head, 1, d)
        else:
            pack(query[0], query[1], query[2], d, first, rows, group, start, scale, d, panel)
        last = min(segments, ((first + rows - 1) // group) // SEGMENT + 1)
        begin = job % runs * run
        end = min(begin + run, last) if split else last
        total = np.int64(parts.ctypes.data) + unit * segments * block if split else panel + room * 4
        sums = total + sides * between
        if begin >= end:
            following = fetch_add(queue) if threads else job + 1
        for i in range(begin, end):
            o = total + i * block if split else total + (block if i else 0)
            stats, after = o + sides * between, ((i + 1) * (SEGMENT // PAGE), places, np.int64(0))
            if i + 1 == end:  # what the next job reads is fetched, too
                following = fetch_add(queue) if threads else job + 1
                page = following % runs * run * (SEGMENT // PAGE) if following < jobs else pages.size
                places_after = _places(layer, kv_heads, following // runs % kv_heads, d, (k_bits, v_bits), offset)
                after = page, places_after, matrix if end == last else np.int64(0)
            attend_segment(
                query, first, rows, group, i, pages, coded, places, after, scratch, d, s, o, o + between, stats
            )  # fmt: skip
            if not split and i:
                _fold_rows(o, stats, total, sums, d, sides, between, first, rows, group, i)
        if split:
            if fetch_add(queue + (FINISHED + 1 + unit) * 8) + 1 < runs:
                continue  # the thread that finishes the last run folds them all
            for i in range(1, last):
                o = total + i * block
                _fold_rows(o, o + sides * between, total, sums, d, sides, between, first, rows, group, i)
        _write(
            total, between, sums, np.int64(out.ctypes.data), out.strides[0], head, first, rows, group, start, d, v_bits,
            means, matrix,
        )  # fmt: skip
        if threads:
            fetch_add(queue + FINISHED * 8)
    keep(memory)


@njit(cache=True)
def shares(tokens, heads, kv_heads, d, start, threads, sides):
    """(tiles of all heads, floats of their parts, segments of a run): few tiles and many segments are shared by
    segments, which need room for their parts; the result is the same either way. `sides` is 2 with codes, else 1."""
    every = tokens * (heads // kv_heads)
    units = kv_heads * ((every + TILE - 1) // TILE)
    segments = (start + tokens - 1) // SEGMENT + 1
    if segments == 1 or units >= JOBS * threads:
        return units, 0, 1
    run = max(1, units * segments // (2 * JOBS * threads))  # the pages of the next segment are fetched ahead
    return units, units * segments * min(TILE, every) * (sides * d + STATS), run


@njit(error_model="numpy", cache=True)
def _turn(q, layer, kv_heads, scale, coding, turned, counts):
    """Bring all queries into the coded basis, head by head, by all threads together."""
    tokens, heads, d = q.shape
    group = heads // kv_heads
    few, width = looked_up(tokens * group), group * (d + EXTRA) * 4
    while True:
        head = take(counts, TAKEN)
        if head >= kv_heads:
            break
        for t in range(tokens):
            row = np.int64(q.ctypes.data) + t * q.strides[0] + head * group * d * 4
            turn_token(row, layer, head, group, d, scale, coding, few, turned + (head * tokens + t) * width)
        take(counts, DONE)
    wait(counts, DONE, kv_heads)


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def _attend(q, pages, coded, coding, layer, start, kv_heads, scale, out, threads):
    tokens, heads, d = q.shape
    units, room, run = shares(tokens, heads, kv_heads, d, start, threads, 2 if coded.size else 1)
    parts = np.empty(room, np.float32)
    turned = np.empty(tokens * heads * (d + EXTRA) if coded.size else 0, np.float32)
    counts, queue = counters(), np.zeros(FINISHED + 1 + units, np.int64)
    for _ in prange(threads):
        if coded.size:
            _turn(q, layer, kv_heads, scale, coding, turned.ctypes.data, counts)
        work(q, turned.ctypes.data, pages, coded, coding, layer, start, kv_heads, scale, out, parts, queue, run)
    keep(turned)


@njit(error_model="numpy", cache=True, nogil=True)
def _attend_alone(q, pages, coded, coding, layer, start, kv_heads, scale, out):
    tokens, heads, d = q.shape
    turned, nothing = np.empty(tokens * heads * (d + EXTRA) if coded.size else 0, np.float32), np.empty(0, np.float32)
    if coded.size:
        _turn(q, layer, kv_heads, scale, coding, turned.ctypes.data, counters())
    at, queue = np.int64(turned.ctypes.data), np.empty(0, np.int64)
    work(q, at, pages, coded, coding, layer, start, kv_heads, scale, out, nothing, queue, 1)
    keep(turned)


def attend(q, pages, layer, start, kv_heads, scale, out, coded=NO_CODES, coding=NO_CODES):
    """Causal attention of a chunk of queries over everything stored before and with them.

    Parameters
    ----------
    q : (T, heads, d) float32; rows may be strided, each (heads, d) contiguous. Query i stands at position start + i and
        sees positions 0 .. start + i. Head h reads the keys of head h // (heads // kv_heads).
    pages : (P,) int64 pages (see `kernels.slab`) that hold start + T tokens of all layers.
    layer : which layer of the pages.
    start : absolute position of the first query.
    kv_heads : heads of the pages.
    scale : multiplies the scores, usually d ** -0.5.
    out : (T, heads, d) float32, written; rows may be strided.
    coded : (P,) int64 pages of codes, 0 for a page without; empty if there are none at all.
    coding : how they are coded, see `kernels.encode`.
    """
    tokens, heads, d = q.shape
    rest = pages, coded, coding, layer, start, kv_heads, scale, out
    if tokens * (start + tokens) * heads * d < SERIAL:
        _alone()(q, *rest)
    else:
        _shared()(q, *rest, get_threads())


@cache
def _alone():
    return compile_once(_attend_alone, STRIDED, *ARGUMENTS)


@cache
def _shared():
    return compile_once(_attend, STRIDED, *ARGUMENTS, int64)
