"""Products of codes with codes: inputs are quantized tile by tile, then panels of weights pass over them."""

import numpy as np
from numba import njit, prange

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
def multiply(table, threads, counts, units, steps, k, block, w, w_steps, kind, w_block, bias, residual, out):
    """Take jobs until there are none left; returns how many there are."""
    (m, n), tile, group = out.shape, table[ROWS], table[GROUP]
    panels, groups, records, w_count = -(-n // WIDTH), -(-k // group), -(-k // block), -(-k // w_block)
    record = 4 * records * (1 + table[UNSIGNED])
    height, chunk = plan(m, n, tile, 4 * groups, threads)
    parts, cut, shift = -(-m // height), CUT // group, 0
    while records > 1 and (block << shift) < w_block and shift < 62:
        shift += 1
    edge, scratch = np.empty((height, WIDTH), np.float32), np.empty(w_count * WIDTH, np.float32)
    jobs = parts * -(-panels // chunk)
    while True:
        job = take(counts, JOB)
        if job >= jobs:
            return jobs
        first = job % parts * height
        last = min(first + height, m)
        for panel in range(job // parts * chunk, min((job // parts + 1) * chunk, panels)):
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


@njit(cache=True)
def _work(table, form, threads, counts, x, shared, w, w_steps, kind, w_block, units, steps, bias, residual, out):
    """What one thread does."""
    _quantize(table, form, counts, x, shared, units, steps)
    k, block = x.shape[1], form[RECORD]
    multiply(table, threads, counts, units, steps, k, block, w, w_steps, kind, w_block, bias, residual, out)


@njit(cache=True, parallel=True, nogil=True)
def multiply_codes(table, threads, x, form, w, w_steps, kind, w_block, bias, residual, out):
    """out = x @ W.T + bias + residual, x quantized; sums are scaled and folded a record.

    form : see `quantize_rows.form_of`.
    w, w_steps, kind, w_block : see `pack.PackedMatrix`; the first two are addresses.
    bias, residual : empty arrays leave them out.
    """
    (m, k), n, counts = x.shape, out.shape[1], counters()
    units = np.empty(m * -(-k // table[GROUP]), np.int32)
    steps = np.empty(m * -(-k // form[RECORD]) * (1 + table[UNSIGNED]), np.float32)
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
