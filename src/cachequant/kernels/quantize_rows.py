"""Inputs of a product as codes in the layout that its micro-kernel reads: `quantize.quantize`, bit for bit."""

import numpy as np
from numba import njit

from cachequant.kernels.calls import bits_of_float, encode, float_of_bits, interleave, largest, transform
from cachequant.kernels.native import ENCODE, GROUP, INTERLEAVE, LARGEST, TRANSFORM, UNSIGNED
from cachequant.quantize import TINY, steps_in_octave
from cachequant.schemes import SCALE_STEPS, Quantizer, Tensor
from cachequant.transform import Basis

BLOCK, RECORD, RULE, LARGEST_CODE, SHARED, FACTORS, ROTATED = range(7)  # places in the numbers of `form_of`
EXACT, HALF = 0, -1  # rules that are not a number of steps an octave
_MANTISSAS = np.ones((1 + max(s or 0 for s in SCALE_STEPS), 1 + max(s or 0 for s in SCALE_STEPS)), np.float32)
for _n in SCALE_STEPS[1:]:
    _MANTISSAS[_n, : _n + 1] = steps_in_octave(_n)


def form_of(quantizer: Quantizer, k: int, part: int, basis: Basis | None = None) -> np.ndarray:
    """(7,) int64: how rows of `k` inputs become codes, as kernels take it.

    BLOCK : values that share a step (k for one step a row).
    RECORD : values for which kernels keep a step: `part`, or BLOCK if that is less.
    RULE : steps an octave, EXACT, or HALF (exact, rounded up to float16).
    LARGEST_CODE : 127 for 8 bits.
    SHARED : whether one scale serves all rows.
    FACTORS, ROTATED : address of the factors of `basis`, or 0 for inputs as they are, and its block.
    """
    rule = HALF if quantizer.half else quantizer.scale.steps or EXACT
    block, shared = quantizer.block(k), quantizer.granularity == Tensor()
    factors, rotated = (basis.factors.ctypes.data, basis.block) if basis else (0, 0)
    return np.array([block, min(part, block), rule, quantizer.largest_code, shared, factors, rotated], np.int64)


@njit(cache=True, error_model="numpy")
def step_and_inverse(a, rule, most):
    """(step, inverse) of a group with largest magnitude `a`, `most` the largest code; (0, 0) for a group of zeros."""
    one = np.float32(1)
    if a < TINY * most:
        return np.float32(0), np.float32(0)
    if rule == EXACT:
        return a / most, most / a
    if rule == HALF:
        step = a / most
        bits = bits_of_float(step)
        if bits >= bits_of_float(np.float32(2.0**-14)):
            step = float_of_bits((bits + 0x1FFF) & ~0x1FFF)
        else:  # denormal as float16: multiples of 2^-24
            step = np.float32(np.ceil(step * np.float32(2.0**24)) * np.float32(2.0**-24))
        return step, one / step
    bits = bits_of_float(a)
    exponent, mantissa = (bits >> 23) - 127, float_of_bits((bits & 0x7FFFFF) | 0x3F000000)
    j = 0
    while _MANTISSAS[rule, j] < mantissa:
        j += 1
    index = min(exponent * rule + j, 127 * rule)
    octave = index // rule
    j = index - octave * rule
    scale = np.float32(2) * _MANTISSAS[rule, j] * float_of_bits((octave + 127) << 23)
    return scale / most, most / scale


@njit(cache=True, error_model="numpy")
def _steps_and_inverses(tops, count, rule, most, steps, inverses):
    """`step_and_inverse` of many groups; the common rules as loops that LLVM vectorizes."""
    if rule == EXACT:
        for b in range(count):
            zero = tops[b] < TINY * most
            steps[b] = np.float32(0) if zero else tops[b] / most
            inverses[b] = np.float32(0) if zero else most / tops[b]
    elif rule == 1:
        for b in range(count):  # up to the next power of two: carry any mantissa into the exponent
            bits = min((bits_of_float(tops[b]) + 0x7FFFFF) & 0x7F800000, 254 << 23)
            zero, scale = tops[b] < TINY * most, float_of_bits(bits)
            steps[b] = np.float32(0) if zero else scale / most
            inverses[b] = np.float32(0) if zero else most / scale
    else:
        for b in range(count):
            steps[b], inverses[b] = step_and_inverse(tops[b], rule, most)


@njit(cache=True, error_model="numpy")
def quantize_tile(table, form, x, rows, k, shared, units, first_unit, steps, first_step):
    """Quantize `rows` rows of `k` floats at address `x` into one tile.

    form : see `form_of`.
    shared : largest magnitude to use for every group, negative to look for it in the group.
    units : int32 scratch; from `first_unit` on it becomes [group of k][row].
    steps : float32 scratch; from `first_step` on it becomes records of [row] steps, for unsigned sets followed by
        [row] int32 start values.
    """
    group, unsigned, block, part = table[GROUP], table[UNSIGNED], form[BLOCK], form[RECORD]
    groups, count, records = -(-k // group), -(-k // block), -(-k // part)
    starts, most = steps.view(np.int32), np.float32(form[LARGEST_CODE])
    own, inverses, tops = np.empty(records, np.float32), np.empty(records, np.float32), np.empty(records, np.float32)
    sums = np.empty(records, np.int32)
    first = units.ctypes.data + 4 * first_unit
    lines = np.empty((rows if rows > 1 else 0, groups), np.int32)
    moved = np.empty(k if form[FACTORS] else 0, np.float32)
    if rows > 1:  # k may end within a group
        lines[:, groups - 1] = 0
    else:
        units[first_unit + groups - 1] = 0
    for r in range(rows):
        row = x + 4 * k * r
        if form[FACTORS]:
            transform(table[TRANSFORM], row, k, form[FACTORS], form[ROTATED], moved.ctypes.data)
            row = moved.ctypes.data
        if shared < 0:
            largest(table[LARGEST], row, k, block, tops.ctypes.data)
        else:
            tops[:count] = shared
        _steps_and_inverses(tops, count, form[RULE], most, own, inverses)
        if records > count:
            for i in range(records - 1, -1, -1):  # backwards: a step moves to places at or after its own
                own[i], inverses[i] = own[i * part // block], inverses[i * part // block]
        at = lines.ctypes.data + 4 * r * groups if rows > 1 else first
        encode(table[ENCODE], row, k, part, form[LARGEST_CODE], inverses.ctypes.data, at, sums.ctypes.data)
        for i in range(records):
            place = first_step + i * rows * (1 + unsigned) + r
            steps[place] = own[i]
            if unsigned:
                starts[place + rows] = -128 * sums[i]
    if rows > 1:
        interleave(table[INTERLEAVE], lines.ctypes.data, rows, groups, first)
