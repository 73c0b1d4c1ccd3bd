"""From the packed codes of a page to the levels that they stand for, in registers (as in NoMAD-Attention, Zhang et al.
2024, and FAISS fast scan, André et al. 2017: a look-up is one shuffle).

A side of a page is a matrix [k][n] with n contiguous: keys [head_dim][32 tokens], values [32 tokens][head_dim]. Codes
of successive k share a 32-bit word of column n, so a vector holds 8 columns:

    bits  words                                   code
    2     [k / 16][n]                             magnitude, sign
    3     [k / 16][n] magnitudes, [k / 32][n]     2 bits of magnitude; signs apart
    4     [k / 8][n]                              3 bits of magnitude, sign
    8     [k / 4][n]                              signed byte
    16    [k][n] halves                           the value
    32    [k][n] floats                           the value

Levels of codes are whole numbers. They come out as pairs of int16, [k / 2][n][2], for products that add two of them:
with h = half of the codes of a word, pair i of word g is k = 2 g h + i and k = 2 g h + i + h.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels import cpu
from cachequant.kernels.codebooks import CODED, LEVELS
from cachequant.kernels.ir import F32, I32, I64, LANES, load, splat, store
from cachequant.kernels.tiles import PAGE

WORDS = ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)
_BYTES, _PAIRS = ir.VectorType(ir.IntType(8), 4 * LANES), ir.VectorType(ir.IntType(16), 2 * LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_AVX2 = "avx2" in cpu.features()


def words(value):
    return ir.Constant(WORDS, [value] * LANES)


def _shifted(builder, word, by):
    """The word moved to the right by `by` bits, to the left if negative."""
    if by == 0:
        return word
    return builder.lshr(word, words(by)) if by > 0 else builder.shl(word, words(-by))


def _look_up(builder, levels, indices):
    """levels[index] of every byte of the words; each is less than 16."""
    indices = builder.bitcast(indices, _BYTES)
    if _AVX2:
        table = ir.Constant(_BYTES, list(levels) * (4 * LANES // len(levels)))
        function = ir.FunctionType(_BYTES, [_BYTES, _BYTES])
        shuffle = cgutils.get_or_insert_function(builder.module, function, "llvm.x86.avx2.pshuf.b")
        return builder.call(shuffle, [table, indices])
    found = ir.Constant(_BYTES, [levels[0]] * 4 * LANES)
    for i, level in enumerate(levels[1:], 1):
        hit = builder.icmp_unsigned("==", indices, ir.Constant(_BYTES, [i] * 4 * LANES))
        found = builder.select(hit, ir.Constant(_BYTES, [level] * 4 * LANES), found)
    return found


def _spread_signs(builder, signs):
    """Bits 4 b ... 4 b + 3 of a word, in the low half of its byte b."""
    order = [4 * (i // 4) + i % 4 // 2 for i in range(4 * LANES)]
    mask = ir.Constant(ir.VectorType(I32, 4 * LANES), order)
    signs = builder.bitcast(signs, _BYTES)
    signs = builder.bitcast(builder.shuffle_vector(signs, signs, mask), WORDS)
    odd = builder.and_(_shifted(builder, signs, 4), words(0x0F000F00))
    return builder.or_(builder.and_(signs, words(0x000F000F)), odd)


def emit_levels(builder, bits, word, signs=None):
    """Pairs of int16 levels of the codes of eight words, in order."""
    if bits == 8:
        fields = [builder.bitcast(word, _BYTES)]
    else:
        width, positive = min(bits, 4) if bits != 3 else 2, LEVELS[bits]
        table = [*positive, *(-x for x in positive)]
        if bits == 3:
            signs = _spread_signs(builder, signs)
        fields = []
        for f in range(8 // width):
            index = builder.and_(_shifted(builder, word, width * f), words(0x01010101 * ((1 << width) - 1)))
            if bits == 3:
                index = builder.or_(index, builder.and_(_shifted(builder, signs, f - 2), words(0x04040404)))
            fields.append(_look_up(builder, table, index))
    eight = ir.Constant(_PAIRS, [8] * 2 * LANES)
    fields = [builder.bitcast(field, _PAIRS) for field in fields]
    low = [builder.ashr(builder.shl(field, eight), eight) for field in fields]
    return low + [builder.ashr(field, eight) for field in fields]


def per_word(bits: int) -> int:
    """Codes of one word (for 3 bits: of a word of magnitudes)."""
    return {2: 16, 3: 16, 4: 8, 8: 4}[bits]


@njit(inline="always")
def side_bytes(bits, d):
    """Bytes of one side of one head in a page: codes, then 32 bfloat16 scales where there are codes."""
    codes = 4 * d * bits
    if bits == 3:
        codes = 4 * PAGE * (d // 16 + -(-d // 32))  # planes of magnitudes and of signs
    return codes + (2 * PAGE if bits <= CODED else 0)


@intrinsic(prefer_literal=True)
def unpack(typingctx, bits, codes, k, n, out):
    """The levels, without scales, of the codes at an address: int16 pairs, for 16 and 32 bits float32 out[k][n].

    `bits` is a literal; k is a multiple of 16, n of 8.
    """
    bits_ = bits.literal_value

    def codegen(context, builder, signature, args):
        codes, k, n, out = args[1:]
        eight = I64(LANES)
        if bits_ >= 16:
            with cgutils.for_range_slice(builder, I64(0), builder.mul(k, n), eight) as (i, _):
                if bits_ == 32:
                    store(builder, load(builder, codes, i, FLOATS), out, i)
                else:
                    pointer = builder.inttoptr(builder.add(codes, builder.mul(i, I64(2))), _HALVES.as_pointer())
                    halves = builder.load(pointer)
                    halves.align = 2
                    store(builder, builder.fpext(halves, FLOATS), out, i)
            return context.get_dummy_value()
        count = per_word(bits_)
        groups = builder.udiv(k, I64(count))
        signs_at = builder.add(codes, builder.mul(builder.mul(groups, n), I64(4)))
        with cgutils.for_range(builder, groups) as loop:
            line = builder.mul(loop.index, n)
            sign_line = builder.mul(builder.udiv(loop.index, I64(2)), n)
            half = builder.trunc(builder.mul(builder.urem(loop.index, I64(2)), I64(16)), I32)
            first = builder.mul(line, I64(count // 2))
            with cgutils.for_range_slice(builder, I64(0), n, eight) as (column, _):
                word, signs = load(builder, codes, builder.add(line, column), WORDS), None
                if bits_ == 3:
                    signs = load(builder, signs_at, builder.add(sign_line, column), WORDS)
                    signs = builder.lshr(signs, splat(builder, half, LANES))
                for i, pairs in enumerate(emit_levels(builder, bits_, word, signs)):
                    place = builder.add(builder.add(first, builder.mul(I64(i), n)), column)
                    store(builder, builder.bitcast(pairs, WORDS), out, place)
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 4), codegen


@njit(error_model="numpy", cache=True)
def unpack_side(bits, codes, k, n, out):
    """`unpack` for bits that are known at run time only."""
    if bits == 4:
        unpack(4, codes, k, n, out)
    elif bits == 3:
        unpack(3, codes, k, n, out)
    elif bits == 2:
        unpack(2, codes, k, n, out)
    elif bits == 8:
        unpack(8, codes, k, n, out)
    elif bits == 16:
        unpack(16, codes, k, n, out)
    else:
        unpack(32, codes, k, n, out)


@intrinsic(prefer_literal=True)
def _round_pairs(typingctx, bits, x, count, factor, out):
    """x * factor as whole numbers, in pairs; `bits` is a literal. Adding 1.5 * 2^23 leaves them in the low bits."""
    half = per_word(bits.literal_value) // 2

    def codegen(context, builder, signature, args):
        _, x, count, factor, out = args
        vector, integers = ir.VectorType(F32, half), ir.VectorType(I32, half)
        factor, magic = splat(builder, factor, half), ir.Constant(vector, [12582912.0] * half)
        with cgutils.for_range(builder, builder.udiv(count, I64(2 * half))) as loop:
            first = builder.mul(loop.index, I64(2 * half))
            low, high = (
                builder.bitcast(
                    builder.fadd(builder.fmul(load(builder, x, builder.add(first, I64(at)), vector), factor), magic),
                    integers,
                )
                for at in (0, half)
            )
            low = builder.and_(low, ir.Constant(integers, [0xFFFF] * half))
            high = builder.shl(high, ir.Constant(integers, [16] * half))
            store(builder, builder.or_(low, high), out, builder.mul(loop.index, I64(half)))
        return context.get_dummy_value()

    return types.void(bits, types.int64, types.int64, types.float32, types.int64), codegen


@njit(error_model="numpy", cache=True)
def whole_pairs(bits, x, count, largest, top, out):
    """`count` floats, none above `largest`, as whole numbers up to `top` in the pairs of a side; returns the step.

    x and out are addresses, count is a multiple of 16, top at most 32,767.
    """
    factor = np.float32(top) / largest if largest > 0 else np.float32(0)
    if bits == 4:
        _round_pairs(4, x, count, factor, out)
    elif bits == 8:
        _round_pairs(8, x, count, factor, out)
    else:
        _round_pairs(3, x, count, factor, out)
    return largest / np.float32(top)


@intrinsic
def half_bits(typingctx, x):
    """The bits of a float32 rounded to float16 (to nearest, ties to even)."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


@intrinsic
def round_half(typingctx, x):
    """A float32 rounded to float16 and back."""

    def codegen(context, builder, signature, args):
        return builder.fpext(builder.fptrunc(args[0], ir.HalfType()), F32)

    return types.float32(types.float32), codegen
