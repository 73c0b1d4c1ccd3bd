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

from functools import reduce

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels import cpu
from cachequant.kernels.codebooks import BITS, CODED, LEVELS
from cachequant.kernels.ir import F32, I32, I64, LANES, emit_larger, emit_tree, load, splat, store
from cachequant.kernels.tiles import PAGE, emit_pairs, emit_scales, scaled

WORDS = ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)
_BYTES, _PAIRS = ir.VectorType(ir.IntType(8), 4 * LANES), ir.VectorType(ir.IntType(16), 2 * LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_AVX2 = "avx2" in cpu.features()
_CHAINS = {1: 4, 3: 2 if "avx512vl" in cpu.features() else 1}  # of sums a row: they wait for each other, registers end


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
    """(i, pairs) for every pair i of the codes of eight words: their int16 levels, in the order that is easiest."""
    if bits == 3:
        signs = _spread_signs(builder, signs)
    width = {2: 2, 3: 2, 4: 4, 8: 8}[bits]
    count, eight = 8 // width, ir.Constant(_PAIRS, [8] * 2 * LANES)
    for f in range(count):
        field = word
        if bits < 8:
            field = builder.and_(_shifted(builder, word, width * f), words(0x01010101 * ((1 << width) - 1)))
            if bits == 3:
                field = builder.or_(field, builder.and_(_shifted(builder, signs, f - 2), words(0x04040404)))
            field = _look_up(builder, [*LEVELS[bits], *(-x for x in LEVELS[bits])], field)
        field = builder.bitcast(field, _PAIRS)
        yield f, builder.ashr(builder.shl(field, eight), eight)
        yield count + f, builder.ashr(field, eight)


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


class _Lines:
    """Where the words of one step of k are: of magnitudes, and of signs where they are apart."""

    def __init__(self, builder, bits, codes, k, n, loop):
        self._builder, self._bits, self._codes = builder, bits, codes
        self._line = builder.mul(loop.index, n)
        if bits == 3:
            planes = builder.mul(builder.udiv(k, I64(16)), n)
            self._signs = builder.add(planes, builder.mul(builder.udiv(loop.index, I64(2)), n))
            half = builder.trunc(builder.mul(builder.urem(loop.index, I64(2)), I64(16)), I32)
            self._shift = splat(builder, half, LANES)

    def read(self, column):
        """Eight words from a column on."""
        builder = self._builder
        word = load(builder, self._codes, builder.add(self._line, column), WORDS)
        if self._bits != 3:
            return word, None
        signs = load(builder, self._codes, builder.add(self._signs, column), WORDS)
        return word, builder.lshr(signs, self._shift)


def each(builder, value, known, emit):
    """Code for every known value of a number, of which the one that it has at run time runs."""
    for one in known:
        with builder.if_then(builder.icmp_signed("==", value, I64(one))):
            emit(one)


@intrinsic
def unpack(typingctx, bits, codes, k, n, out):
    """The levels, without scales, of the codes at an address: int16 pairs, for 16 and 32 bits float32 out[k][n].

    k is a multiple of 16, n of 8.
    """

    def codegen(context, builder, signature, args):
        bits, codes, k, n, out = args

        def values(bits):
            with cgutils.for_range_slice(builder, I64(0), builder.mul(k, n), I64(LANES)) as (i, _):
                if bits == 32:
                    store(builder, load(builder, codes, i, FLOATS), out, i)
                else:
                    pointer = builder.inttoptr(builder.add(codes, builder.mul(i, I64(2))), _HALVES.as_pointer())
                    halves = builder.load(pointer)
                    halves.align = 2
                    store(builder, builder.fpext(halves, FLOATS), out, i)

        def levels(bits):
            half = per_word(bits) // 2
            with cgutils.for_range(builder, builder.udiv(k, I64(2 * half))) as loop:
                lines = _Lines(builder, bits, codes, k, n, loop)
                first = builder.mul(builder.mul(loop.index, n), I64(half))
                with cgutils.for_range_slice(builder, I64(0), n, I64(LANES)) as (column, _):
                    for i, pairs in emit_levels(builder, bits, *lines.read(column)):
                        place = builder.add(builder.add(first, builder.mul(I64(i), n)), column)
                        store(builder, builder.bitcast(pairs, WORDS), out, place)

        each(builder, bits, BITS, lambda one: values(one) if one > CODED else levels(one))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@intrinsic(prefer_literal=True)
def multiply(typingctx, columns, bits, rows, a, a_row, codes, n, factors, addends, stride, c, ldc, k):
    """`tiles.coded_product` for one row or three, with the levels of the codes at an address as b: they stay in
    registers. n is a multiple of 16, k counts values; only `columns` is a literal.
    """
    columns_ = columns.literal_value

    def codegen(context, builder, signature, args):
        bits, rows, a, a_row, codes, n, factors, addends, stride, c, ldc, k = args[1:]

        def emit(bits, rows):
            half, starts = per_word(bits) // 2, [builder.mul(I64(r), a_row) for r in range(rows)]
            with cgutils.for_range_slice(builder, I64(0), n, I64(2 * LANES)) as (column, _):
                at, chains = [column, builder.add(column, I64(LANES))], _CHAINS[rows]
                sums = [
                    [[cgutils.alloca_once_value(builder, words(0)) for _ in range(chains)] for _ in at] for _ in starts
                ]
                with cgutils.for_range(builder, builder.udiv(k, I64(2 * half))) as loop:
                    lines, unit = _Lines(builder, bits, codes, k, n, loop), builder.mul(loop.index, I64(half))
                    for both in zip(*(emit_levels(builder, bits, *lines.read(x)) for x in at), strict=True):
                        place = builder.add(unit, I64(both[0][0]))
                        for start, totals in zip(starts, sums, strict=True):
                            left = splat(builder, load(builder, a, builder.add(place, start), I32), LANES)
                            for parts, (i, right) in zip(totals, both, strict=True):
                                part = parts[i % chains]
                                builder.store(emit_pairs(builder, builder.load(part), left, right), part)
                for r, totals in enumerate(sums):
                    for parts, x in zip(totals, at, strict=True):
                        place = builder.add(builder.mul(I64(r), ldc), x)
                        total = reduce(builder.add, [builder.load(part) for part in parts])
                        scaled(builder, columns_, total, factors, addends, stride, r, x, c, place)

        each(builder, rows, (1, 3), lambda r: each(builder, bits, (2, 3, 4, 8), lambda b: emit(b, r)))
        return context.get_dummy_value()

    return types.void(columns, *[types.int64] * 12), codegen


def _whole(builder, x, factor):
    """x * factor as whole numbers below 2^16, in the low bits: adding 1.5 * 2^23 rounds, to nearest, ties to even."""
    magic = ir.Constant(x.type, [12582912.0] * x.type.count)
    words = ir.VectorType(I32, x.type.count)
    return builder.bitcast(builder.fadd(builder.fmul(x, splat(builder, factor, x.type.count)), magic), words)


def _pair(builder, low, high):
    low = builder.and_(low, ir.Constant(low.type, [0xFFFF] * low.type.count))
    return builder.or_(low, builder.shl(high, ir.Constant(low.type, [16] * low.type.count)))


@intrinsic
def whole_pairs(typingctx, bits, x, count, factor, out):
    """`count` floats times a factor as whole numbers in the pairs of a side of that many bits."""

    def codegen(context, builder, signature, args):
        bits, x, count, factor, out = args

        def emit(bits):
            half = per_word(bits) // 2
            with cgutils.for_range(builder, builder.udiv(count, I64(2 * half))) as loop:
                first, vector = builder.mul(loop.index, I64(2 * half)), ir.VectorType(F32, half)
                low, high = (
                    _whole(builder, load(builder, x, builder.add(first, I64(i)), vector), factor) for i in (0, half)
                )
                store(builder, _pair(builder, low, high), out, builder.mul(loop.index, I64(half)))

        each(builder, bits, (2, 3, 4, 8), emit)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32, types.int64), codegen


@intrinsic
def page_weights(typingctx, bits, p, scales, seen, top, out):
    """What multiplies the levels of a page: 32 weights p times the bfloat16 scales of its values, as whole numbers up
    to `top` in pairs; returns their step. All but bits and top are addresses; p is added to the eight sums of `seen`.
    """

    def codegen(context, builder, signature, args):
        bits, p, scales, seen, top, out = args
        p = [load(builder, p, I64(i), FLOATS) for i in range(0, PAGE, LANES)]
        total = builder.fadd(builder.fadd(p[0], p[1]), builder.fadd(p[2], p[3]))
        store(builder, builder.fadd(load(builder, seen, I64(0), FLOATS), total), seen, I64(0))
        w = [builder.fmul(x, emit_scales(builder, scales, I64(i * LANES))) for i, x in enumerate(p)]
        largest = emit_tree(builder, w, lambda x, y: emit_larger(builder, x, y))
        some = builder.fcmp_ordered(">", largest, F32(0.0))
        factor = builder.select(some, builder.fdiv(top, largest), F32(0.0))
        w = [_whole(builder, x, factor) for x in w]

        def emit(bits):
            half = per_word(bits) // 2
            low, high = w[0::2], w[1::2]
            if half < LANES:
                order = [i for i in range(LANES) if i // half % 2 == 0]
                low, high = (
                    [builder.shuffle_vector(x, x, ir.Constant(ir.VectorType(I32, LANES // 2), lanes)) for x in w]
                    for lanes in (order, [i + half for i in order])
                )
            for i, (x, y) in enumerate(zip(low, high, strict=True)):
                store(builder, _pair(builder, x, y), out, I64(i * x.type.count))

        each(builder, bits, (2, 3, 4, 8), emit)
        return builder.fdiv(largest, top)

    return types.float32(types.int64, types.int64, types.int64, types.int64, types.float32, types.int64), codegen


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
