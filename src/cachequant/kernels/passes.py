"""All blocks of a decoder in one parallel region: what a token costs beside its arithmetic.

Called kernel by kernel, a decoded token pays for hundreds of calls from Python and as many times waking the threads.
Here the threads run through the blocks together. Each stage hands out jobs from its own counters and ends when all of
its jobs have ended, so a thread that comes late finds nothing left to do; no stage depends on how many threads there
are. Norms and activations are computed tile by tile on the way into the quantized inputs and are never stored.

The arithmetic is that of the single kernels, row for row and bit for bit.
"""

import numpy as np
from numba import carray, njit

from cachequant.kernels import codes, floats
from cachequant.kernels.append import append_page
from cachequant.kernels.attention import FINISHED, work
from cachequant.kernels.calls import interleave
from cachequant.kernels.ir import pointer
from cachequant.kernels.jobs import COUNTERS, DONE, ENDED, TAKEN, take, wait
from cachequant.kernels.native import GROUP, INTERLEAVE, ROWS, TABLE_SIZE, UNSIGNED
from cachequant.kernels.pointwise import gelu_row, layer_row, rms_row, rope_row, silu_row
from cachequant.kernels.quantize_rows import RECORD, quantize_tile
from cachequant.kernels.tiles import PAGE
from cachequant.kernels.turned import EXTRA, looked_up, turn_token
from cachequant.kernels.views import floats as floats_at
from cachequant.kernels.views import numbers

# places in the numbers of a matrix, of a block and of the decoder's shape
WEIGHT, STEPS, KIND, W_BLOCK, OUTPUTS, INPUTS, FORM, WIDENED, BIAS = range(9)
MATRIX = 9
NORM, NORM_BIAS, QKV, OUTPUT = 0, 1, 2, 2 + MATRIX
SECOND_NORM, SECOND_BIAS, UP, DOWN = (2 + 2 * MATRIX + i for i in (0, 1, 2, 2 + MATRIX))
BLOCK = 4 + 4 * MATRIX
FORM_NUMBERS = 7
HEADS, KV_HEADS, HEAD_DIM, ACTIVATION, ROTARY = range(5)
PLAIN, RMS, LAYER, SILU, GELU = range(5)  # what becomes of a row before it is quantized
SHAPES = 5
(
    TABLE, SHAPE, REALS, PAGES, PARTS, UNITS, STEP, PACKED, HIDDEN, BETWEEN, PROJECTED, WIDE, PROGRAM, COUNTS, QUEUES,
    COS, SIN, CODED, CODING, TURNED, UNIT_COUNT, STEP_COUNT, PACKED_COUNT, THREADS, M, START, LAYERS, PAGE_COUNT,
    PART_SIZE, QUEUE_SIZE, CODED_COUNT, CODING_SIZE, RUN, ARGUMENTS,
) = range(34)  # fmt: skip  # of the blocks: addresses, then sizes
STAGES = 5  # of a block: four matrices, keys and values; attention has counters of its own


@njit(error_model="numpy", cache=True)
def _row(how, x, n, weight, bias, eps, out):
    """One row of `n` inputs of a matrix from what the stage before it wrote."""
    if how == RMS:
        rms_row(x, weight, n, eps, out)
    elif how == LAYER:
        layer_row(x, weight, bias, n, eps, out)
    elif how == SILU:
        silu_row(x, n, out)
    else:
        floats_at(out, n)[:] = floats_at(x, n)
        gelu_row(out, n)


@njit(error_model="numpy", cache=True)
def _prepare_tile(table, how, x, rows, norm, matrix, scratch, units, first_unit, steps, first_step, packed):
    """One tile of inputs of a matrix: norm or activation, then codes, or float32 in the order of the kernels."""
    weight, bias, eps = norm
    k = matrix[INPUTS]
    if how != PLAIN:
        stride, at = 4 * k * (2 if how == SILU else 1), np.int64(scratch.ctypes.data)
        for r in range(rows):
            _row(how, x + r * stride, k, weight, bias, eps, at + 4 * r * k)
        x = at
    if matrix[FORM]:
        form = numbers(matrix[FORM], FORM_NUMBERS)
        quantize_tile(table, form, x, rows, k, np.float32(-1), units, first_unit, steps, first_step)
    else:
        interleave(table[INTERLEAVE], x, rows, k, packed.ctypes.data)


@njit(error_model="numpy", cache=True)
def _prepare(table, counts, how, x, m, norm, matrix, inputs, scratch):
    """Inputs of a matrix, tile by tile, by all threads together."""
    units, steps, packed = inputs
    k, tile = matrix[INPUTS], table[ROWS]
    stride = 4 * k * (2 if how == SILU else 1)
    groups, record = -(-k // table[GROUP]), 0
    if matrix[FORM]:
        record = -(-k // numbers(matrix[FORM], FORM_NUMBERS)[RECORD]) * (1 + table[UNSIGNED])
    while True:
        i = take(counts, TAKEN) * tile
        if i >= m:
            break
        _prepare_tile(
            table, how, x + i * stride, min(tile, m - i), norm, matrix, scratch,
            units, i * groups, steps, i * record, packed[i * k :],
        )  # fmt: skip
        take(counts, DONE)
    wait(counts, DONE, -(-m // tile))


@njit(error_model="numpy", cache=True)
def _linear(table, threads, counts, how, x, m, norm, matrix, inputs, residual, out):
    """out = inputs @ W.T + bias + residual; x, residual and out are addresses, 0 leaves the residual out.

    A thread that finds no job left prepares nothing: what it would read may be written by the next stage already.

    norm : address of weight and bias, and epsilon, for RMS and LAYER.
    inputs : scratch for codes, their steps, and float32 inputs of more than one tile; each thread prepares a single
        tile for itself, instead of waiting for another thread.
    """
    n, k, w, coded = matrix[OUTPUTS], matrix[INPUTS], matrix[WEIGHT], matrix[FORM] != 0
    widened = matrix[WIDENED] != 0
    if coded:
        job, work = codes.begin(table, threads, counts, m, n, k, w)
    else:
        job, work = floats.begin(table, threads, counts, m, n, k, w, widened)
    if job < work[2]:
        units, steps, packed = inputs
        form, rows = numbers(matrix[FORM], FORM_NUMBERS), min(m, table[ROWS])
        scratch = np.empty(0 if how == PLAIN else rows * k, np.float32)
        if m == rows:
            if coded:
                units, steps = codes.room(table, form, m, k)
            else:
                packed = np.empty(m * k, np.float32)
            _prepare_tile(table, how, x, m, norm, matrix, scratch, units, 0, steps, 0, packed)
        else:
            _prepare(table, counts, how, x, m, norm, matrix, inputs, scratch)
        w_steps, kind, w_block = matrix[STEPS], matrix[KIND], matrix[W_BLOCK]
        bias = floats_at(matrix[BIAS], n if matrix[BIAS] else 0)
        rest = carray(pointer(residual), (m if residual else 0, n), np.float32)
        to = carray(pointer(out), (m, n), np.float32)
        if coded:
            block = form[RECORD]
            codes.multiply(
                table, threads, counts, job, work, units, steps, k, block, w, w_steps, kind, w_block, bias, rest, to
            )  # fmt: skip
        else:
            floats.multiply(
                table, threads, counts, job, work, packed, k, w, w_steps, kind, w_block, widened, bias, rest, to
            )  # fmt: skip
    wait(counts, ENDED, work[2])


@njit(error_model="numpy", cache=True)
def _store(counts, shape, qkv, m, cos, sin, store, layer, start, scale, turned):
    """Rotate queries and keys to their positions, bring queries into the coded basis, and write keys and values into
    the pages, which are coded where they are full; a job is a head's page."""
    pages, coded, coding = store
    heads, kv_heads, d = shape[HEADS], shape[KV_HEADS], shape[HEAD_DIM]
    group, stride, first = heads // kv_heads, 4 * (heads + 2 * kv_heads) * d, start // PAGE
    count = ((start + m - 1) // PAGE + 1 - first) * kv_heads
    while True:
        job = take(counts, TAKEN)
        if job >= count:
            break
        head, page = job % kv_heads, first + job // kv_heads
        begin, end = max(start, page * PAGE), min(start + m, (page + 1) * PAGE)
        for t in range(begin, end):
            row = qkv + (t - start) * stride
            query = row + 4 * head * group * d
            if shape[ROTARY]:
                at = 4 * t * (d // 2)
                rope_row(query, cos + at, sin + at, d // 2, group)
                rope_row(row + 4 * (heads + head) * d, cos + at, sin + at, d // 2, 1)
            if coded.size:
                to = turned + 4 * (head * m + t - start) * group * (d + EXTRA)
                turn_token(query, layer, head, group, d, scale, coding, looked_up(m * group), to)
        key = qkv + (begin - start) * stride + 4 * (heads + head) * d
        value = key + 4 * kv_heads * d
        append_page(key, stride, value, stride, page, begin, end, pages, coded, coding, layer, kv_heads, head, d)
        take(counts, DONE)
    wait(counts, DONE, count)


@njit(error_model="numpy", cache=True)
def _attend(counters, shape, qkv, m, store, layer, start, scale, turned, parts, run, out):
    """Causal attention over the pages; qkv, turned and out are addresses."""
    heads, kv_heads, d = shape[HEADS], shape[KV_HEADS], shape[HEAD_DIM]
    pages, coded, coding = store
    q = carray(pointer(qkv), (m, heads + 2 * kv_heads, d), np.float32)[:, :heads]
    result = carray(pointer(out), (m, heads, d), np.float32)[:, :heads]
    work(q, turned, pages, coded, coding, layer, start, kv_heads, scale, result, parts, counters, run)
    wait(counters, FINISHED, counters.size - FINISHED - 1)


@njit(error_model="numpy", cache=True)
def run_blocks(arguments):
    """What one thread does; `arguments` is the address of the numbers that `region` makes."""
    a = numbers(arguments, ARGUMENTS)
    table, shape = numbers(a[TABLE], TABLE_SIZE), numbers(a[SHAPE], SHAPES)
    threads, m, start = a[THREADS], a[M], a[START]
    eps, scale = carray(pointer(a[REALS]), (2,), np.float64)
    parts = floats_at(a[PARTS], a[PART_SIZE])
    store = (
        numbers(a[PAGES], a[PAGE_COUNT]),
        numbers(a[CODED], a[CODED_COUNT]),
        numbers(a[CODING], a[CODING_SIZE]),
    )
    units = carray(pointer(a[UNITS]), (a[UNIT_COUNT],), np.int32)
    inputs = units, floats_at(a[STEP], a[STEP_COUNT]), floats_at(a[PACKED], a[PACKED_COUNT])
    hidden, between, qkv, wide = a[HIDDEN], a[BETWEEN], a[PROJECTED], a[WIDE]
    norm = LAYER if numbers(a[PROGRAM], BLOCK)[NORM_BIAS] else RMS
    sources, targets, residuals = (hidden, wide, between, wide), (qkv, between, wide, hidden), (0, hidden, 0, between)
    hows, places = (norm, PLAIN, norm, shape[ACTIVATION]), (QKV, OUTPUT, UP, DOWN)
    norms = NORM, NORM, SECOND_NORM, NORM
    for i in range(a[LAYERS]):
        block, stage = numbers(a[PROGRAM] + 8 * BLOCK * i, BLOCK), a[COUNTS] + 8 * COUNTERS * STAGES * i
        for j in range(4):  # one call for the four matrices: it is compiled once
            if j == 1:
                c = numbers(stage + 32 * COUNTERS, COUNTERS)
                _store(c, shape, qkv, m, a[COS], a[SIN], store, i, start, scale, a[TURNED])
                queue = numbers(a[QUEUES] + 8 * a[QUEUE_SIZE] * i, a[QUEUE_SIZE])
                _attend(queue, shape, qkv, m, store, i, start, scale, a[TURNED], parts, a[RUN], wide)
            c = numbers(stage + 8 * COUNTERS * j, COUNTERS)
            matrix, weight, bias = block[places[j] :][:MATRIX], block[norms[j]], block[norms[j] + 1]
            _linear(
                table, threads, c, hows[j], sources[j], m, (weight, bias, eps), matrix, inputs, residuals[j], targets[j]
            )  # fmt: skip
