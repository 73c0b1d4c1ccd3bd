"""Products of floats with floats, or with codes: those are widened to float32 on the way, block by block."""

import numpy as np
from numba import njit, prange

from cachequant.kernels import jobs
from cachequant.kernels.calls import blocks, chain, expand, interleave
from cachequant.kernels.jobs import (
    DONE,
    ENDED,
    JOB,
    SERIAL,
    TAKEN,
    counters,
    end_panel,
    panel_steps,
    panels_of,
    place,
    plan,
    take,
    wait,
)  # fmt: skip
from cachequant.kernels.micro import FRESH, LAST
from cachequant.kernels.native import (
    BLOCKS_FLOATS,
    BLOCKS_WIDE,
    CHAIN_FLOATS,
    CHAIN_WIDE,
    GROUP,
    INTERLEAVE,
    ROWS,
    WIDEN,
)  # fmt: skip
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
        at, to = x.ctypes.data + 4 * i * k, packed.ctypes.data + 4 * i * k
        interleave(table[INTERLEAVE], at, min(tile, m - i), k, to)
        take(counts, DONE)
    wait(counts, DONE, -(-m // tile))


@njit(cache=True)
def begin(table, threads, counts, m, n, k, w, widened):
    """(first job, what `multiply` works on): see `jobs`."""
    work = plan(m, n, table[ROWS], 4 * k, threads)
    group = table[GROUP]
    return jobs.begin(counts, m, n, threads, work, w, WIDTH * (-(-k // group) * group if widened else 4 * k)), work


@njit(cache=True)
def multiply(table, threads, counts, job, work, packed, k, w, w_steps, kind, w_block, widened, bias, residual, out):
    """Do a job, and take more until there are none left."""
    (m, n), tile, group = out.shape, table[ROWS], table[GROUP]
    groups, w_count = -(-k // group), -(-k // w_block)
    parts, direct = -(-m // work[0]), widened and m == 1 and k % group == 0
    edge, scratch = np.empty((work[0], WIDTH), np.float32), np.empty(w_count * WIDTH if widened else 0, np.float32)
    wide = np.empty((CUT + group) * WIDTH if widened else 0, np.float32)
    while job < work[2]:
        first = job % parts * work[0]
        last = min(first + work[0], m)
        for panel in range(*panels_of(job, m, n, threads, work)):
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
        job = take(counts, JOB)


@njit(cache=True)
def _work(table, threads, counts, x, packed, w, w_steps, kind, w_block, widened, bias, residual, out):
    """What one thread does: a single tile of inputs it packs for itself, instead of waiting for another thread."""
    m, k = x.shape
    job, work = begin(table, threads, counts, m, out.shape[1], k, w, widened)
    if job >= work[2]:
        return
    if 1 < m <= table[ROWS]:
        packed = np.empty(m * k, np.float32)
        interleave(table[INTERLEAVE], x.ctypes.data, m, k, packed.ctypes.data)
    elif m > 1:
        _pack(table, counts, x, packed)
    multiply(table, threads, counts, job, work, packed, k, w, w_steps, kind, w_block, widened, bias, residual, out)


@njit(cache=True, parallel=True, nogil=True)
def multiply_floats(table, threads, x, w, w_steps, kind, w_block, widened, bias, residual, out):
    """out = x @ W.T + bias + residual in float32; `widened` if W is codes.

    w, w_steps, kind, w_block : see `pack.PackedMatrix`; the first two are addresses.
    bias, residual : empty arrays leave them out.
    """
    (m, k), n, counts = x.shape, out.shape[1], counters()
    packed = np.empty(m * k if m > table[ROWS] else 0, np.float32) if m > 1 else x.reshape(-1)
    threads = 1 if m * n * k < SERIAL else threads
    for _ in prange(threads):
        _work(table, threads, counts, x, packed, w, w_steps, kind, w_block, widened, bias, residual, out)
