"""What the drivers of products and of whole passes share: how work is cut, handed to threads, and how a panel ends.

Threads take jobs from shared counters, so a slow or busy core gets fewer. Nothing here changes the arithmetic of an
output.
"""

import os

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from cachequant.kernels.calls import expand, finish
from cachequant.kernels.ir import fetch_add, prefetch
from cachequant.kernels.micro import AHEAD
from cachequant.kernels.native import EXPONENTS, FINISH, HALVES
from cachequant.kernels.pack import EXPONENT, FLOAT
from cachequant.kernels.simd import WIDTH

INPUT_BYTES = 192 << 10  # packed inputs of one job: they stay in L2 while the panels pass
JOBS = 4  # per thread
SERIAL = 1 << 17  # multiply-adds below which waking a second thread costs more than it saves
TAKEN, DONE, JOB, ENDED = range(4)  # counters: tiles of inputs begun and finished, jobs of outputs begun and finished
COUNTERS = 4
PATIENCE = 2000  # looks at a counter before the waiting thread offers its core to others
_sched_yield = types.ExternalFunction("sched_yield", types.int32()) if os.name == "posix" else None


@njit(cache=True)
def counters():
    """Counters of one product; arrays, because an address alone would not keep memory alive."""
    return np.zeros(COUNTERS, np.int64)


@njit(cache=True)
def take(counts, which):
    """The next number of a counter."""
    return fetch_add(counts.ctypes.data + 8 * which)


@njit(cache=True)
def wait(counts, which, number):
    """Wait until so many are finished. Each one that was begun is with a running thread, so this ends."""
    looks = 0
    while _read(counts.ctypes.data + 8 * which) < number:
        looks += 1
        if looks > PATIENCE:
            _offer_core()


if _sched_yield is None:

    @njit(cache=True)
    def _offer_core():
        pass

else:

    @njit(cache=True)
    def _offer_core():
        _sched_yield()


@intrinsic
def _read(typingctx, address):
    """The int64 at an address, with everything that was written before it."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@njit(cache=True)
def plan(m, n, tile, row_bytes, threads):
    """(rows of a job, cuts of the panels, jobs): inputs fit L2, and there are enough jobs for the threads."""
    panels = -(-n // WIDTH)
    parts = max(1, -(-m * row_bytes // INPUT_BYTES))
    if panels < 2 * threads:
        parts = max(parts, -(-2 * threads // panels))
    height = -(-m // parts)
    height = -(-height // tile) * tile
    cuts = min(panels, JOBS * threads)
    return height, cuts, -(-m // height) * cuts


@njit(cache=True)
def panels_of(job, m, n, threads, work):
    """(first panel, end) of a job: equal shares, and threads that take turns read runs of neighbours."""
    height, cuts, _ = work
    part, run = job // -(-m // height), cuts // threads
    if part < run * threads:
        part = part % threads * run + part // threads
    panels = -(-n // WIDTH)
    return part * panels // cuts, (part + 1) * panels // cuts


@njit(cache=True)
def begin(counts, m, n, threads, work, w, panel_bytes):
    """The first job of a thread; its first weights are on their way while the inputs are made ready."""
    job = take(counts, JOB)
    if job < work[2]:
        prefetch(w + panels_of(job, m, n, threads, work)[0] * panel_bytes, AHEAD)
    return job


@njit(cache=True)
def panel_steps(table, address, kind, count, panel, scratch):
    """Address of the `count` x 16 float32 weight steps of a panel, decoded into the scratch if they are not floats."""
    if kind == FLOAT:
        return address + 4 * WIDTH * count * panel
    if kind == EXPONENT:
        expand(table[EXPONENTS], address + WIDTH * count * panel, count, scratch.ctypes.data)
    else:
        expand(table[HALVES], address + 2 * WIDTH * count * panel, count, scratch.ctypes.data)
    return scratch.ctypes.data


@njit(cache=True)
def place(edge, out, first, column):
    """(address, bytes from row to row) of a panel of outputs; one that is not full goes to the scratch `edge`."""
    n = out.shape[1]
    if n - column < WIDTH:
        return edge.ctypes.data, 4 * WIDTH
    return out.ctypes.data + 4 * (first * n + column), 4 * n


@njit(cache=True)
def end_panel(table, edge, count, out, first, column, bias, residual):
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
