"""Matrix products out = x @ W.T + bias + residual, W packed once as float32 or as 8-bit codes.

Each output is one fixed sequence of operations, whatever the number of rows, the tile and the threads:
float32 is a chain of fused multiply-adds over ascending k; codes are exact int32 sums, times (input step * weight
step), blocks folded by fma in ascending order; codes with float32 inputs are a chain per block, times the weight step.
Work is cut along outputs and rows only (Goto & van de Geijn 2008); threads take jobs from a shared counter, so a slow
core gets fewer. Nothing is validated here.
"""

from functools import cache

import numpy as np
from numba import njit, prange, types

from cachequant.kernels import get_threads, native, selfcheck, simd
from cachequant.kernels.calls import blocks, chain, expand, finish, largest
from cachequant.kernels.ir import fetch_add
from cachequant.kernels.micro import FRESH, LAST
from cachequant.kernels.native import (
    BLOCKS_CODES,
    BLOCKS_FLOATS,
    CHAIN_CODES,
    CHAIN_FLOATS,
    EXPONENTS,
    FINISH,
    GROUP,
    HALVES,
    LARGEST,
    ROWS,
    UNSIGNED,
    WIDEN,
)
from cachequant.kernels.pack import EXPONENT, FLOAT, LONGEST, PackedMatrix, rows
from cachequant.kernels.pack import pack_codes as _pack_codes
from cachequant.kernels.pack import pack_fp32 as _pack_fp32
from cachequant.kernels.quantize_rows import quantize_tile, rule_of
from cachequant.quantize import Quantized
from cachequant.schemes import Quantizer, Tensor

__all__ = ["PackedMatrix", "matmul", "pack_codes", "pack_fp32", "rows"]

WIDTH = simd.WIDTH
CUT = 256  # k of one pass of float tiles: a panel of 16 KB stays in L1; a multiple of every block size
CODES_CUT = 1024  # the same for codes, in values
INPUT_BYTES = 192 << 10  # packed inputs of one job: they stay in L2 while the panels pass
JOBS = 4  # per thread
SERIAL = 1 << 17  # multiply-adds below which waking a second thread costs more than it saves
FEW = 12  # rows that one thread packs alone

_NONE1, _NONE2 = np.empty(0, np.float32), np.empty((0, 0), np.float32)


@njit(cache=True)
def _plan(m, panels, tile, row_bytes, threads):
    """(rows of a job, panels of a job): inputs fit L2, and there are enough jobs for the threads."""
    chunk = max(1, panels // (JOBS * threads))
    parts = max(1, -(-m * row_bytes // INPUT_BYTES))
    if panels < 2 * threads:
        parts = max(parts, -(-2 * threads // panels))
    height = -(-m // parts)
    return -(-height // tile) * tile, chunk


@njit(cache=True)
def _store_edge(edge, count, out, first, column, bias, residual):
    """Copy the valid columns of the last panel from its full-width scratch."""
    for i in range(count):
        for j in range(out.shape[1] - column):
            value = edge[i, j]
            if bias.size:
                value += bias[column + j]
            if residual.size:
                value += residual[first + i, column + j]
            out[first + i, column + j] = value


@njit(cache=True)
def _end_panel(table, edge, count, out, first, column, bias, residual):
    """Add bias and residual to a finished panel of outputs."""
    n = out.shape[1]
    if n - column < WIDTH:
        _store_edge(edge, count, out, first, column, bias, residual)
    elif bias.size or residual.size:
        at = 4 * (first * n + column)
        b = bias.ctypes.data + 4 * column if bias.size else 0
        r = residual.ctypes.data + at if residual.size else 0
        finish(table[FINISH], out.ctypes.data + at, 4 * n, count, b, r, 4 * n)


@njit(cache=True)
def _panel_steps(table, address, kind, count, panel, scratch):
    """Address of the `count` x 16 float32 weight steps of a panel, decoded into the scratch if they are not floats."""
    if kind == FLOAT:
        return address + 4 * WIDTH * count * panel
    if kind == EXPONENT:
        expand(table[EXPONENTS], address + WIDTH * count * panel, count, scratch.ctypes.data)
    else:
        expand(table[HALVES], address + 2 * WIDTH * count * panel, count, scratch.ctypes.data)
    return scratch.ctypes.data


@njit(cache=True)
def _codes_jobs(table, threads, counter, units, steps, k, block, w, w_steps, kind, w_block, bias, residual, out):
    """Take jobs until there are none: codes times codes."""
    (m, n), tile, group = out.shape, table[ROWS], table[GROUP]
    panels, groups, records, w_count = -(-n // WIDTH), -(-k // group), -(-k // block), -(-k // w_block)
    record = 4 * records * (1 + table[UNSIGNED])
    height, chunk = _plan(m, panels, tile, 4 * groups, threads)
    parts, cut, shift = -(-m // height), CODES_CUT // group, 0
    while records > 1 and (block << shift) < w_block and shift < 62:
        shift += 1
    edge = np.empty((height, WIDTH), np.float32)
    scratch = np.empty(w_count * WIDTH, np.float32)
    while True:
        job = fetch_add(counter.ctypes.data)
        if job >= parts * -(-panels // chunk):
            break
        first = job % parts * height
        last = min(first + height, m)
        for panel in range(job // parts * chunk, min((job // parts + 1) * chunk, panels)):
            column = panel * WIDTH
            scales = _panel_steps(table, w_steps, kind, w_count, panel, scratch)
            b = w + panel * groups * group * WIDTH
            c, ldc = out.ctypes.data + 4 * (first * n + column), 4 * n
            if n - column < WIDTH:
                c, ldc = edge.ctypes.data, 4 * WIDTH
            if records == 1:
                for g in range(0, groups, cut):
                    mode = (FRESH if g == 0 else 0) | (LAST if g + cut >= groups else 0)
                    count = min(cut, groups - g)
                    for i in range(first, last, tile):
                        height_ = min(tile, last - i)
                        a, x = units.ctypes.data + 4 * (i * groups + g * height_), steps.ctypes.data + i * record
                        at = c + (i - first) * ldc
                        chain(table[CHAIN_CODES], height_, a, b + g * group * WIDTH, count, at, ldc, x, scales, mode)
            else:
                for i in range(first, last, tile):
                    a, x = units.ctypes.data + 4 * i * groups, steps.ctypes.data + i * record
                    at = c + (i - first) * ldc
                    blocks(
                        table[BLOCKS_CODES],
                        min(tile, last - i),
                        a,
                        b,
                        groups,
                        at,
                        ldc,
                        x,
                        scales,
                        FRESH,
                        block // group,
                        shift,
                    )
            _end_panel(table, edge, last - first, out, first, column, bias, residual)


@njit(cache=True)
def _quantize_tiles(table, x, start, stop, x_block, block, rule, shared, units, steps):
    (m, k), tile, group = x.shape, table[ROWS], table[GROUP]
    groups, record = -(-k // group), -(-k // block) * (1 + table[UNSIGNED])
    for i in range(start * tile, min(stop * tile, m), tile):
        at, count = x.ctypes.data + 4 * i * k, min(tile, m - i)
        quantize_tile(table, at, count, k, x_block, block, rule, shared, units, i * groups, steps, i * record)


@njit(cache=True, parallel=True, nogil=True)
def _codes(table, threads, x, x_block, rule, tensor, block, w, w_steps, kind, w_block, bias, residual, out):
    """Quantize the rows of x, then multiply."""
    (m, k), n = x.shape, out.shape[1]
    units = np.empty(m * -(-k // table[GROUP]), np.int32)
    steps = np.empty(m * -(-k // block) * (1 + table[UNSIGNED]), np.float32)
    top = np.empty(1, np.float32)
    top[0] = -1
    if tensor:
        largest(table[LARGEST], x.ctypes.data, m * k, m * k, top.ctypes.data)
    shared = top[0]
    tiles = -(-m // table[ROWS])
    counter = np.empty(1, np.int64)
    counter[0] = 0
    if m <= FEW or m * n * k < SERIAL:
        _quantize_tiles(table, x, 0, tiles, x_block, block, rule, shared, units, steps)
    else:
        for t in prange(tiles):
            _quantize_tiles(table, x, t, t + 1, x_block, block, rule, shared, units, steps)
    if m * n * k < SERIAL:
        _codes_jobs(table, threads, counter, units, steps, k, block, w, w_steps, kind, w_block, bias, residual, out)
    else:
        for _ in prange(threads):
            _codes_jobs(table, threads, counter, units, steps, k, block, w, w_steps, kind, w_block, bias, residual, out)


@njit(cache=True)
def _floats_jobs(table, threads, counter, packed, k, w, w_steps, kind, w_block, widened, bias, residual, out):
    """Take jobs until there are none: floats times floats, or times codes that are widened panel by panel."""
    (m, n), tile, group = out.shape, table[ROWS], table[GROUP]
    panels, groups, w_count = -(-n // WIDTH), -(-k // group), -(-k // w_block)
    height, chunk = _plan(m, panels, tile, 4 * k, threads)
    parts = -(-m // height)
    edge = np.empty((height, WIDTH), np.float32)
    scratch = np.empty(w_count * WIDTH if widened else 0, np.float32)
    wide = np.empty((CUT + group) * WIDTH if widened else 0, np.float32)
    while True:
        job = fetch_add(counter.ctypes.data)
        if job >= parts * -(-panels // chunk):
            break
        first = job % parts * height
        last = min(first + height, m)
        for panel in range(job // parts * chunk, min((job // parts + 1) * chunk, panels)):
            column, scales = panel * WIDTH, 0
            if widened:
                scales = _panel_steps(table, w_steps, kind, w_count, panel, scratch)
            c, ldc = out.ctypes.data + 4 * (first * n + column), 4 * n
            if n - column < WIDTH:
                c, ldc = edge.ctypes.data, 4 * WIDTH
            for at in range(0, k, CUT):
                count = min(CUT, k - at)
                mode = (FRESH if at == 0 else 0) | (LAST if at + CUT >= k else 0)
                b = w + 4 * WIDTH * (panel * k + at)
                if widened:
                    b = wide.ctypes.data
                    expand(table[WIDEN], w + WIDTH * (panel * groups * group + at), -(-count // group), b)
                for i in range(first, last, tile):
                    height_, to = min(tile, last - i), c + (i - first) * ldc
                    a = packed.ctypes.data + 4 * (i * k + at * height_)
                    if w_block >= k:
                        chain(table[CHAIN_FLOATS], height_, a, b, count, to, ldc, 0, scales, mode)
                    else:
                        s = scales + 4 * WIDTH * (at // w_block)
                        blocks(table[BLOCKS_FLOATS], height_, a, b, count, to, ldc, 0, s, mode, w_block, 0)
            _end_panel(table, edge, last - first, out, first, column, bias, residual)


@njit(cache=True)
def _pack_tiles(table, x, start, stop, packed):
    """Rows of x as [tile][k][row]."""
    (m, k), tile = x.shape, table[ROWS]
    for i in range(start * tile, min(stop * tile, m), tile):
        count, at = min(tile, m - i), i * k
        for j in range(k):
            for r in range(count):
                packed[at + r] = x[i + r, j]
            at += count


@njit(cache=True, parallel=True, nogil=True)
def _floats(table, threads, x, w, w_steps, kind, w_block, widened, bias, residual, out):
    """Pack the rows of x, then multiply."""
    (m, k), n = x.shape, out.shape[1]
    packed = np.empty(m * k, np.float32) if m > 1 else x.reshape(-1)
    tiles = -(-m // table[ROWS])
    counter = np.empty(1, np.int64)
    counter[0] = 0
    if m <= FEW or m * n * k < SERIAL:
        if m > 1:
            _pack_tiles(table, x, 0, tiles, packed)
    else:
        for t in prange(tiles):
            _pack_tiles(table, x, t, t + 1, packed)
    if m * n * k < SERIAL:
        _floats_jobs(table, threads, counter, packed, k, w, w_steps, kind, w_block, widened, bias, residual, out)
    else:
        for _ in prange(threads):
            _floats_jobs(table, threads, counter, packed, k, w, w_steps, kind, w_block, widened, bias, residual, out)


_MATRIX, _VECTOR, _INT = types.float32[:, ::1], types.float32[::1], types.int64
_TYPES = {
    _codes: [types.int64[::1], _INT, _MATRIX, *[_INT] * 8, _VECTOR, _MATRIX, _MATRIX],
    _floats: [types.int64[::1], _INT, _MATRIX, *[_INT] * 5, _VECTOR, _MATRIX, _MATRIX],
}


@cache
def _compiled(function):
    """Entry point of a compiled function: called directly, it saves the time that looking up the types takes."""
    return function.compile(tuple(_TYPES[function]))


def pack_fp32(w: np.ndarray) -> PackedMatrix:
    """Pack a (N, K) float32 matrix for the kernels of this CPU."""
    return _pack_fp32(w, selfcheck.active())


def pack_codes(q: Quantized) -> PackedMatrix:
    """Pack (N, K) codes and their scales for the kernels of this CPU."""
    return _pack_codes(q, selfcheck.active())


def matmul(
    x: np.ndarray,
    w: PackedMatrix,
    activation: Quantizer | None = None,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """x @ W.T + bias + residual in float32.

    Parameters
    ----------
    x : (M, K) float32.
    w : packed (N, K) weights.
    activation : how the rows of x are quantized on the way (with codes only); None multiplies them in float32.
    bias : (N,) float32.
    residual : (M, N) float32; not the memory of `out`.
    out : (M, N) float32, C-contiguous; made if None.
    """
    x = np.ascontiguousarray(x, np.float32)
    if out is None:
        out = np.empty((len(x), w.n), np.float32)
    if not len(x):
        return out
    bias = _NONE1 if bias is None else np.ascontiguousarray(bias, np.float32)
    residual = _NONE2 if residual is None else np.ascontiguousarray(residual, np.float32)
    call = w.call
    if call[0] is not activation:
        call = w.call = _bind(w, activation)
    _, function, table, numbers = call
    function(table, get_threads(), x, *numbers, bias, residual, out)
    return out


def _bind(w: PackedMatrix, activation: Quantizer | None):
    """The compiled function for inputs in that format, and what it takes besides arrays: found once per matrix."""
    weights = w.address, w.scale_address, w.scale_kind, w.block
    table = native.table(w.kernel_set)
    if activation is None:
        return activation, _compiled(_floats), table, (*weights, w.kind == "codes")
    x_block = activation.block(w.k)
    tensor = activation.granularity == Tensor()
    block = min(x_block, w.block, LONGEST)
    return activation, _compiled(_codes), table, (x_block, rule_of(activation), tensor, block, *weights)
