"""From the packed codes of a page to the levels that they stand for, in registers (as in NoMAD-Attention, Zhang et al.
2024, and FAISS fast scan, André et al. 2017: a look-up is one shuffle).

A side of a page is a matrix [k][n] with n contiguous: keys [head_dim][32 tokens], values [32 tokens][head_dim]. Codes
of successive k share a 32-bit word of column n, so a vector holds 8 columns and a shift brings the next k:

    bits  words                                   code
    2     [k / 16][n]                             magnitude, sign
    3     [k / 16][n] magnitudes, [k / 32][n]     2 bits of magnitude; signs apart
    4     [k / 8][n]                              3 bits of magnitude, sign
    8     [k / 4][n]                              signed byte
    16    [k][n] halves                           the value
    32    [k][n] floats                           the value
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels import cpu
from cachequant.kernels.codebooks import CODED, MAGNITUDES
from cachequant.kernels.ir import F32, I32, I64, LANES, load, splat, store
from cachequant.kernels.tiles import PAGE

WORDS = ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_AVX2 = "avx2" in cpu.features()


def words(value):
    return ir.Constant(WORDS, [value] * LANES)


def _signed(builder, magnitude, word, position):
    """The magnitude with bit `position` of the word as its sign."""
    moved = builder.shl(word, words(31 - position)) if position < 31 else word
    sign = builder.and_(moved, words(-(1 << 31)))
    return builder.bitcast(builder.xor(builder.bitcast(magnitude, WORDS), sign), FLOATS)


def _look_up(builder, levels, word):
    """levels[low bits of word], lane by lane; higher bits are ignored."""
    count = len(levels)
    table = ir.Constant(FLOATS, list(levels) * (LANES // count))
    if _AVX2 and count == 8:
        function = ir.FunctionType(FLOATS, [FLOATS, WORDS])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, function, "llvm.x86.avx2.permps"), [table, word]
        )
    if _AVX2 and count == 4:
        function = ir.FunctionType(FLOATS, [FLOATS, WORDS])
        name = "llvm.x86.avx.vpermilvar.ps.256"
        return builder.call(cgutils.get_or_insert_function(builder.module, function, name), [table, word])
    index, found = builder.and_(word, words(count - 1)), ir.Constant(FLOATS, [levels[0]] * LANES)
    for i, level in enumerate(levels[1:], 1):
        hit = builder.icmp_unsigned("==", index, words(i))
        found = builder.select(hit, ir.Constant(FLOATS, [level] * LANES), found)
    return found


def _shifted(builder, word, by):
    return builder.lshr(word, words(by)) if by else word


def emit_levels(builder, bits, word, signs, j):
    """The float32 levels of the j-th codes of eight words."""
    if bits == 8:
        moved = builder.shl(word, words(24 - 8 * j)) if j < 3 else word
        return builder.sitofp(builder.ashr(moved, words(24)), FLOATS)
    if bits == 2:  # the sign is part of the index
        low, high = MAGNITUDES[2]
        return _look_up(builder, (low, high, -low, -high), _shifted(builder, word, 2 * j))
    if bits == 3:
        return _signed(builder, _look_up(builder, MAGNITUDES[3], _shifted(builder, word, 2 * j)), signs, j)
    return _signed(builder, _look_up(builder, MAGNITUDES[4], _shifted(builder, word, 4 * j)), word, 4 * j + 3)


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
    """out[k][n] float32 levels, without scales, of the codes at an address; k is a multiple of 16, n of 8.

    `bits` is a literal.
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
            first = builder.mul(line, I64(count))
            with cgutils.for_range_slice(builder, I64(0), n, eight) as (column, _):
                word, signs = load(builder, codes, builder.add(line, column), WORDS), None
                if bits_ == 3:
                    signs = load(builder, signs_at, builder.add(sign_line, column), WORDS)
                    signs = builder.lshr(signs, splat(builder, half, LANES))
                for j in range(count):
                    place = builder.add(builder.add(first, builder.mul(I64(j), n)), column)
                    store(builder, emit_levels(builder, bits_, word, signs, j), out, place)
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 4), codegen


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
