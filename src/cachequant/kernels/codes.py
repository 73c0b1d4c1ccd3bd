"""Products of codes with codes: inputs are quantized tile by tile, then panels of weights pass over them."""

import numpy as np
from numba import njit, prange

from cachequant.kernels import jobs
from cachequant.kernels.calls import blocks, chain, largest
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
from cachequant.kernels.native import BLOCKS_CODES, CHAIN_CODES, GROUP, LARGEST, ROWS, UNSIGNED
from cachequant.kernels.quantize_rows import RECORD, SHARED, quantize_tile
from cachequant.kernels.simd import WIDTH

CUT = 1024  # values of k of one pass of tiles: the part of a panel stays in L1


@njit(cache=True)
def _quantize(table, form, counts, x, shared, units, steps):
    """Quantize tiles of inputs until there are none left, and wait for those of other threads."""
    (m, k), tile, group = x.shape, table[ROWS], table[GROUP]
    groups, record, tiles = -(-k // group), -(-k // form[RECORD]) * (1 + table[UNSIGNED]), -(-m // tile)
    while True:
        i = take(counts, TAKEN) * tile
        if i >= m:
            break
        at, rows = x.ctypes.data + 4 * i * k, min(tile, m - i)
        quantize_tile(table, form, at, rows, k, shared, units, i * groups, steps, i * record)
        take(counts, DONE)
    wait(counts, DONE, tiles)


@njit(cache=True)
def begin(table, threads, counts, m, n, k, w):
    """(first job, what `multiply` works on): see `jobs`."""
    groups = -(-k // table[GROUP])
    work = plan(m, n, table[ROWS], 4 * groups, threads)
    return jobs.begin(counts, m, n, threads, work, w, groups * table[GROUP] * WIDTH), work


@njit(cache=True)
def multiply(table, threads, counts, job, work, units, steps, k, block, w, w_steps, kind, w_block, bias, residual, out):
    """Do a job, and take more until there are none left."""
    (m, n), tile, group = out.shape, table[ROWS], table[GROUP]
    groups, records, w_count = -(-k // group), -(-k // block), -(-k // w_block)
    record = 4 * records * (1 + table[UNSIGNED])
    parts, cut, shift = -(-m // work[0]), CUT // group, 0
    while records > 1 and (block << shift) < w_block and shift < 62:
        shift += 1
    edge, scratch = np.empty((work[0], WIDTH), np.float32), np.empty(w_count * WIDTH, np.float32)
    while job < work[2]:
        first = job % parts * work[0]
        last = min(first + work[0], m)
        for panel in range(*panels_of(job, m, n, threads, work)):
            scales = panel_steps(table, w_steps, kind, w_count, panel, scratch)
            b = w + panel * groups * group * WIDTH
            c, ldc = place(edge, out, first, panel * WIDTH)
            for g in range(0, groups, cut if records == 1 else groups):
                mode = (FRESH if g == 0 else 0) | (LAST if g + cut >= groups else 0)
                part = b + g * group * WIDTH
                for i in range(first, last, tile):
                    rows, to, x = min(tile, last - i), c + (i - first) * ldc, steps.ctypes.data + i * record
                    a = units.ctypes.data + 4 * (i * groups + g * rows)
                    if records == 1:
                        chain(table[CHAIN_CODES], rows, a, part, min(cut, groups - g), to, ldc, x, scales, mode)
                    else:
                        size = block // group
                        blocks(table[BLOCKS_CODES], rows, a, part, groups, to, ldc, x, scales, FRESH, size, shift)
            end_panel(table, edge, last - first, out, first, panel * WIDTH, bias, residual)
        take(counts, ENDED)
        job = take(counts, JOB)


@njit(cache=True)
def room(table, form, m, k):
    """Arrays for the codes of inputs and their steps."""
    records = -(-k // form[RECORD])
    return np.empty(m * -(-k // table[GROUP]), np.int32), np.empty(m * records * (1 + table[UNSIGNED]), np.float32)


@njit(cache=True)
def _work(table, form, threads, counts, x, shared, w, w_steps, kind, w_block, units, steps, bias, residual, out):
    """What one thread does: a single tile of inputs it quantizes for itself, instead of waiting for another thread."""
    (m, k), block = x.shape, form[RECORD]
    job, work = begin(table, threads, counts, m, out.shape[1], k, w)
    if job >= work[2]:
        return
    if m <= table[ROWS]:
        units, steps = room(table, form, m, k)
        quantize_tile(table, form, x.ctypes.data, m, k, shared, units, 0, steps, 0)
    else:
        _quantize(table, form, counts, x, shared, units, steps)
    multiply(table, threads, counts, job, work, units, steps, k, block, w, w_steps, kind, w_block, bias, residual, out)


@njit(cache=True, parallel=True, nogil=True)
def multiply_codes(table, threads, x, form, w, w_steps, kind, w_block, bias, residual, out):
    """out = x @ W.T + bias + residual, x quantized; sums are scaled and folded a record.

    form : see `quantize_rows.form_of`.
    w, w_steps, kind, w_block : see `pack.PackedMatrix`; the first two are addresses.
    bias, residual : empty arrays leave them out.
    """
    (m, k), n, counts = x.shape, out.shape[1], counters()
    units, steps = room(table, form, m if m > table[ROWS] else 0, k)
    shared = _largest(table, x) if form[SHARED] else np.float32(-1)
    threads = 1 if m * n * k < SERIAL else threads
    for _ in prange(threads):
        _work(table, form, threads, counts, x, shared, w, w_steps, kind, w_block, units, steps, bias, residual, out)


@njit(cache=True)
def _largest(table, x):
    """The largest magnitude of a matrix."""
    top = np.empty(1, np.float32)
    largest(table[LARGEST], x.ctypes.data, x.size, x.size, top.ctypes.data)
    return top[0]
