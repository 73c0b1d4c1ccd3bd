"""Products of floats with floats, or with codes: those are widened to float32 on the way, block by block."""

import numpy as np
from numba import njit, prange

from cachequant.kernels.calls import blocks, chain, expand
from cachequant.kernels.jobs import (
    DONE,
    ENDED,
    JOB,
    SERIAL,
    TAKEN,
    counters,
    end_panel,
    panel_steps,
    place,
    plan,
    take,
    wait,
)  # fmt: skip
from cachequant.kernels.micro import FRESH, LAST
from cachequant.kernels.native import BLOCKS_FLOATS, BLOCKS_WIDE, CHAIN_FLOATS, CHAIN_WIDE, GROUP, ROWS, WIDEN
from cachequant.kernels.simd import WIDTH

CUT = 256  # k of one pass of tiles: the part of a panel, 16 KB, stays in L1; a multiple of every block size


@njit(cache=True)
def _pack(table, counts, x, packed):
    """Pack tiles of inputs as [k][row] until there are none left, and wait for those of other threads."""
    (m, k), tile = x.shape, table[ROWS]
    while True:
        i = take(counts, TAKEN) * tile
        if i >= m:
            break
        rows = min(tile, m - i)
        pack_tile(x[i : i + rows], packed[i * k :])
        take(counts, DONE)
    wait(counts, DONE, -(-m // tile))


@njit(cache=True)
def pack_tile(x, packed):
    """Rows of inputs as [k][row]."""
    rows, k = x.shape
    for j in range(k):
        for r in range(rows):
            packed[j * rows + r] = x[r, j]


@njit(cache=True)
def multiply(table, threads, counts, packed, k, w, w_steps, kind, w_block, widened, bias, residual, out):
    """Take jobs until there are none left; returns how many there are."""
    (m, n), tile, group = out.shape, table[ROWS], table[GROUP]
    panels, groups, w_count = -(-n // WIDTH), -(-k // group), -(-k // w_block)
    height, chunk = plan(m, n, tile, 4 * k, threads)
    parts, direct = -(-m // height), widened and m == 1 and k % group == 0
    edge, scratch = np.empty((height, WIDTH), np.float32), np.empty(w_count * WIDTH if widened else 0, np.float32)
    wide = np.empty((CUT + group) * WIDTH if widened else 0, np.float32)
    jobs = parts * -(-panels // chunk)
    while True:
        job = take(counts, JOB)
        if job >= jobs:
            return jobs
        first = job % parts * height
        last = min(first + height, m)
        for panel in range(job // parts * chunk, min((job // parts + 1) * chunk, panels)):
            scales, codes = 0, w + WIDTH * panel * groups * group
            if widened:
                scales = panel_steps(table, w_steps, kind, w_count, panel, scratch)
            c, ldc = place(edge, out, first, panel * WIDTH)
            if direct and w_block >= k:
                chain(table[CHAIN_WIDE], 1, packed.ctypes.data, codes, groups, c, ldc, 0, scales, FRESH | LAST)
            elif direct:
                size = w_block // group
                blocks(table[BLOCKS_WIDE], 1, packed.ctypes.data, codes, groups, c, ldc, 0, scales, FRESH, size, 0)
            for at in range(0, 0 if direct else k, CUT):
                count = min(CUT, k - at)
                mode = (FRESH if at == 0 else 0) | (LAST if at + CUT >= k else 0)
                b = w + 4 * WIDTH * (panel * k + at)
                if widened:
                    b = wide.ctypes.data
                    expand(table[WIDEN], codes + WIDTH * at, -(-count // group), b)
                for i in range(first, last, tile):
                    rows, to = min(tile, last - i), c + (i - first) * ldc
                    a = packed.ctypes.data + 4 * (i * k + at * rows)
                    if w_block >= k:
                        chain(table[CHAIN_FLOATS], rows, a, b, count, to, ldc, 0, scales, mode)
                    else:
                        s = scales + 4 * WIDTH * (at // w_block)
                        blocks(table[BLOCKS_FLOATS], rows, a, b, count, to, ldc, 0, s, mode, w_block, 0)
            end_panel(table, edge, last - first, out, first, panel * WIDTH, bias, residual)
        take(counts, ENDED)


@njit(cache=True)
def _work(table, threads, counts, x, packed, w, w_steps, kind, w_block, widened, bias, residual, out):
    """What one thread does."""
    if len(x) > 1:
        _pack(table, counts, x, packed)
    multiply(table, threads, counts, packed, x.shape[1], w, w_steps, kind, w_block, widened, bias, residual, out)


@njit(cache=True, parallel=True, nogil=True)
def multiply_floats(table, threads, x, w, w_steps, kind, w_block, widened, bias, residual, out):
    """out = x @ W.T + bias + residual in float32; `widened` if W is codes.

    w, w_steps, kind, w_block : see `pack.PackedMatrix`; the first two are addresses.
    bias, residual : empty arrays leave them out.
    """
    (m, k), n, counts = x.shape, out.shape[1], counters()
    packed = np.empty(m * k, np.float32) if m > 1 else x.reshape(-1)
    threads = 1 if m * n * k < SERIAL else threads
    for _ in prange(threads):
        _work(table, threads, counts, x, packed, w, w_steps, kind, w_block, widened, bias, residual, out)
