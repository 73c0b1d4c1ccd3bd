"""The parallel region that a decoder's blocks run in: its memory and its numbers, made anew for each call.

Little of it is Python: beside the arithmetic of a decoded token, that is what costs time.
"""

from functools import cache

import numpy as np
from numba import cfunc, int64, njit, prange, types

from cachequant.kernels import get_threads
from cachequant.kernels import passes as p
from cachequant.kernels.append import NO_CODES
from cachequant.kernels.attention import FINISHED, SIGNATURE, shares, work
from cachequant.kernels.calls import call
from cachequant.kernels.ir import LINE
from cachequant.kernels.jobs import COUNTERS
from cachequant.kernels.lazy import ADDRESSES, MATRIX, VECTOR, compile_once
from cachequant.kernels.native import ROWS, TABLE_SIZE
from cachequant.kernels.turned import EXTRA
from cachequant.kernels.views import keep, numbers

_SCRATCH = (p.WIDE, p.UNITS, p.STEP, p.PACKED, p.BETWEEN, p.PROJECTED, p.PARTS, p.TURNED)  # in the order of their sizes
_keep: list = []  # compiled functions that are known by their address only


@cache
def _entry() -> int:
    """Address of the compiled blocks: called by it, they are not compiled again into the region around them."""
    if not work.overloads:
        compile_once(work, *SIGNATURE, VECTOR, ADDRESSES, int64)
    _keep.append(cfunc(types.void(types.int64), cache=True, error_model="numpy")(_call_blocks))
    return _keep[-1].address


def _call_blocks(arguments):
    p.run_blocks(arguments)


@njit(cache=True, parallel=True, nogil=True)
def _region(function, arguments, threads):
    for _ in prange(threads):
        call(function, arguments)


@njit(error_model="numpy", cache=True, nogil=True)
def _run(function, fixed, x, pages, start, coded, coding, threads):
    """Scratch memory and what else changes from call to call, then the threads."""
    (m, width), layers, single = x.shape, fixed[p.LAYERS], len(x) <= numbers(fixed[p.TABLE], TABLE_SIZE)[ROWS]
    shape = numbers(fixed[p.SHAPE], p.SHAPES)
    heads, kv_heads, d = shape[p.HEADS], shape[p.KV_HEADS], shape[p.HEAD_DIM]
    tiles, room, share = shares(m, heads, kv_heads, d, start, threads, 2 if coded.size else 1)
    arguments = fixed.copy()
    for size in (p.UNIT_COUNT, p.STEP_COUNT, p.PACKED_COUNT):
        arguments[size] *= 0 if single else m
    arguments[p.THREADS], arguments[p.M], arguments[p.START], arguments[p.RUN] = threads, m, start, share
    arguments[p.PAGE_COUNT], arguments[p.CODED_COUNT], arguments[p.CODING_SIZE] = pages.size, coded.size, coding.size
    arguments[p.PART_SIZE], arguments[p.QUEUE_SIZE] = room, FINISHED + 1 + tiles
    sizes = (
        m * fixed[p.WIDE], arguments[p.UNIT_COUNT], arguments[p.STEP_COUNT], arguments[p.PACKED_COUNT], m * width,
        m * (heads + 2 * kv_heads) * d, room, m * heads * (d + EXTRA) if coded.size else 0,
    )  # fmt: skip
    total = 0
    for size in sizes:
        total += size + LINE // 4
    memory = np.empty(total, np.float32)
    at = np.int64(memory.ctypes.data)
    for i in range(len(sizes)):
        arguments[_SCRATCH[i]] = at
        at += (sizes[i] * 4 + LINE - 1) // LINE * LINE
    counts = np.zeros(layers * (p.STAGES * COUNTERS + arguments[p.QUEUE_SIZE]), np.int64)
    arguments[p.COUNTS] = counts.ctypes.data
    arguments[p.QUEUES] = arguments[p.COUNTS] + 8 * layers * p.STAGES * COUNTERS
    arguments[p.HIDDEN], arguments[p.PAGES] = x.ctypes.data, pages.ctypes.data
    arguments[p.CODED], arguments[p.CODING] = coded.ctypes.data, coding.ctypes.data
    _region(function, np.int64(arguments.ctypes.data), threads)
    keep(arguments)
    keep(memory)
    keep(counts)


@cache
def _compiled():
    return _entry(), compile_once(_run, int64, ADDRESSES, MATRIX, ADDRESSES, int64, ADDRESSES, ADDRESSES, int64)


def fixed_numbers(table, program, shape, reals, widths, cos, sin):
    """(ARGUMENTS,) int64: what `run` takes of a decoder. They hold addresses; the arrays have to be kept.

    table : of the kernel set that all matrices are packed for.
    program : (layers, BLOCK) int64: addresses and sizes of each block, see the names above.
    shape : (5,) int64: HEADS, KV_HEADS, HEAD_DIM, ACTIVATION (SILU or GELU), ROTARY.
    reals : (2,) float64: epsilon of the norms, and the scale of attention's scores.
    widths : most outputs of the feed-forward part, units, steps and float32 inputs that a row needs.
    cos, sin : (positions, HEAD_DIM / 2) float32, or empty.
    """
    found, arrays = np.zeros(p.ARGUMENTS, np.int64), (table, program, shape, reals, cos, sin)
    found[[p.TABLE, p.PROGRAM, p.SHAPE, p.REALS, p.COS, p.SIN]] = [array.ctypes.data for array in arrays]
    found[[p.WIDE, p.UNIT_COUNT, p.STEP_COUNT, p.PACKED_COUNT]], found[p.LAYERS] = widths, len(program)
    return found


def run(fixed, x, pages, start, coded=NO_CODES, coding=NO_CODES):
    """All blocks over the (T, width) float32 hidden states `x` of positions start, ..., in place.

    fixed : see `fixed_numbers`.
    pages : (P,) int64 addresses of pages with room for all tokens.
    coded, coding : codes of the pages, as for `attention.attend`.
    """
    function, compiled = _compiled()
    compiled(function, fixed, x, pages, start, coded, coding, get_threads())
