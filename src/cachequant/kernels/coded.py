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

Levels of codes are whole numbers; p of them share a 32-bit lane: with c codes to a word and s = c / p, lane i of word g
holds k = c g + i + j s for j < p. Unpacked they are pairs of int16, [k / 2][n][2]. Products that look codes up on the
way take pairs too, or four bytes where one instruction adds four products (`tiles.BYTES`). What they multiply, queries
and weights, are whole numbers of 16 bits in the same order: pairs, or the low and then the high bytes of four.
"""

from functools import reduce

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels import cpu
from cachequant.kernels.codebooks import BITS, CODED, LEVELS
from cachequant.kernels.ir import F32, I32, I64, LANES, constant, emit_larger, emit_tree, load, splat, store
from cachequant.kernels.tiles import BYTES, I16, PAGE, RAISED, emit_pairs, emit_quads, emit_scales, scaled

WORDS = ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)
_BYTES, _PAIRS = ir.VectorType(ir.IntType(8), 4 * LANES), ir.VectorType(ir.IntType(16), 2 * LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_AVX2 = "avx2" in cpu.features()
_PARTS, _TIMES = (4, 2) if BYTES else (2, 1)  # levels of a lane, and words that multiply it, where codes are looked up
_CHAINS = {1: 4, 3: 2 if "avx512vl" in cpu.features() else 1}  # of sums a row: they wait for each other, registers end


def words(value):
    return ir.Constant(WORDS, [value] * LANES)


def _shifted(builder, word, by):
    """The word moved to the right by `by` bits, to the left if negative."""
    if by == 0:
        return word
    return builder.lshr(word, words(by)) if by > 0 else builder.shl(word, words(-by))


def _look_up(builder, table, indices):
    """table[index % 16] of every byte of the words; each is less than 128."""
    indices = builder.bitcast(indices, _BYTES)
    if _AVX2:
        function = ir.FunctionType(_BYTES, [_BYTES, _BYTES])
        shuffle = cgutils.get_or_insert_function(builder.module, function, "llvm.x86.avx2.pshuf.b")
        return builder.call(shuffle, [ir.Constant(_BYTES, table * 2), indices])
    indices = builder.and_(indices, ir.Constant(_BYTES, [15] * 4 * LANES))
    found = ir.Constant(_BYTES, [table[0]] * 4 * LANES)
    for i, level in enumerate(table[1:], 1):
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


def _indices(builder, bits, word, signs):
    """(bytes, codes) for every field of the words: codes[i] is the code of those bytes of which i are the low 4 bits.

    Half a byte may hold a neighbour too, so that it need not be masked out.
    """
    halves = [builder.and_(_shifted(builder, word, by), words(0x0F0F0F0F)) for by in (0, 4)]
    if bits == 4:
        return [(half, list(range(16))) for half in halves]
    if bits == 2:
        return [(half, [i >> low & 3 for i in range(16)]) for half in halves for low in (0, 2)]
    signs = _spread_signs(builder, signs)
    found, above = [], _shifted(builder, signs, -2)
    for f, (source, at) in enumerate(((above, 2), (above, 3), (signs, 2), (signs, 3))):
        magnitude = builder.and_(_shifted(builder, word, 2 * f), words(0x03030303))
        source = builder.and_(source, words(0x3C3C3C3C))
        found.append((builder.or_(magnitude, source), [i & 3 | (i >> at & 1) << 2 for i in range(16)]))
    return found


def emit_levels(builder, bits, word, signs=None, parts=2, raised=0):
    """(i, levels) for every lane i of the codes of eight words, `parts` levels to a lane, in the order that is easiest;
    four come plus `raised`."""
    if bits == 8:
        fields = [builder.xor(word, words(-0x7F7F7F80)) if raised else word]
    else:
        levels = [sign * level + raised for sign in (1, -1) for level in LEVELS[bits]]
        levels = [x - 256 if x > 127 else x for x in levels]
        fields = [
            builder.bitcast(_look_up(builder, [levels[code] for code in codes], index), WORDS)
            for index, codes in _indices(builder, bits, word, signs)
        ]
    eight = ir.Constant(_PAIRS, [8] * 2 * LANES)
    for f, field in enumerate(fields):
        if parts == 4:
            yield f, field
        else:
            pairs = builder.bitcast(field, _PAIRS)
            yield f, builder.bitcast(builder.ashr(builder.shl(pairs, eight), eight), WORDS)
            yield len(fields) + f, builder.bitcast(builder.ashr(pairs, eight), WORDS)


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
                        store(builder, pairs, out, place)

        each(builder, bits, BITS, lambda one: values(one) if one > CODED else levels(one))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


def _added(builder, columns, total, left, right):
    return emit_quads(builder, columns, total, left, right) if BYTES else emit_pairs(builder, total, left, right)


@intrinsic(prefer_literal=True)
def multiply(typingctx, columns, bits, rows, a, a_row, codes, n, factors, addends, stride, c, ldc, k):
    """`tiles.coded_product` for one row or three, with the levels of the codes at an address as b: they stay in
    registers. n is a multiple of 16, k counts values; only `columns` is a literal.
    """
    columns_ = columns.literal_value

    def codegen(context, builder, signature, args):
        bits, rows, a, a_row, codes, n, factors, addends, stride, c, ldc, k = args[1:]

        def emit(bits, rows):
            starts, raised = [builder.mul(I64(r), a_row) for r in range(rows)], BYTES and columns_
            with cgutils.for_range_slice(builder, I64(0), n, I64(2 * LANES)) as (column, _):
                at, chains = [column, builder.add(column, I64(LANES))], max(_TIMES, _CHAINS[rows])
                sums = [
                    [[cgutils.alloca_once_value(builder, words(0)) for _ in range(chains)] for _ in at] for _ in starts
                ]
                with cgutils.for_range(builder, builder.udiv(k, I64(per_word(bits)))) as loop:
                    lines = _Lines(builder, bits, codes, k, n, loop)
                    unit = builder.mul(loop.index, I64(per_word(bits) // _PARTS * _TIMES))
                    levels = (emit_levels(builder, bits, *lines.read(x), _PARTS, RAISED if raised else 0) for x in at)
                    for both in zip(*levels, strict=True):
                        for start, totals in zip(starts, sums, strict=True):
                            for half in range(_TIMES):
                                place = builder.add(unit, I64(both[0][0] * _TIMES + half))
                                left = splat(builder, load(builder, a, builder.add(place, start), I32), LANES)
                                for parts, (i, right) in zip(totals, both, strict=True):
                                    part = parts[(i * _TIMES + half) % chains]
                                    builder.store(_added(builder, columns_, builder.load(part), left, right), part)
                for r, totals in enumerate(sums):
                    for parts, x in zip(totals, at, strict=True):
                        place = builder.add(builder.mul(I64(r), ldc), x)
                        low, *high = (
                            reduce(builder.add, [builder.load(part) for part in parts[half::_TIMES]])
                            for half in range(_TIMES)
                        )
                        total = builder.add(low, builder.shl(high[0], words(8))) if high else low
                        scaled(builder, columns_, total, factors, addends, stride, r, x, c, place, raised)

        each(builder, rows, (1, 3), lambda r: each(builder, bits, (2, 3, 4, 8), lambda b: emit(b, r)))
        return context.get_dummy_value()

    return types.void(columns, *[types.int64] * 12), codegen


def _whole(builder, x, factor):
    """x * factor as whole numbers, to nearest, ties to even: adding 1.5 * 2^23 rounds, and leaves them in low bits."""
    magic = ir.Constant(x.type, [12582912.0] * x.type.count)
    words = ir.VectorType(I32, x.type.count)
    rounded = builder.fadd(builder.fmul(x, splat(builder, factor, x.type.count)), magic)
    return builder.sub(builder.bitcast(rounded, words), builder.bitcast(magic, words))


def _lanes(builder, parts):
    """Whole numbers that share the 32-bit lanes of vectors, the first one lowest."""
    room = 32 // len(parts)
    first, *rest = (builder.and_(x, constant((1 << room) - 1, x)) for x in parts)
    for i, x in enumerate(rest, 1):
        first = builder.or_(first, builder.shl(x, constant(i * room, x)))
    return first


def _alternate(builder, vectors):
    """One vector, or the elements of two in turn."""
    first, *rest = vectors
    if not rest:
        return first
    count = first.type.count
    order = [i + part * count for i in range(count) for part in (0, 1)]
    return builder.shuffle_vector(first, rest[0], ir.Constant(ir.VectorType(I32, 2 * count), order))


@intrinsic(prefer_literal=True)
def whole_numbers(typingctx, looked_up, bits, x, count, factor, out):
    """`count` floats times a factor as the whole numbers that multiply codes of that many bits; returns their sum.

    looked_up : literal; whether they meet codes that are looked up on the way, not levels that are unpacked.
    """
    parts, halves = (_PARTS, _TIMES) if looked_up.literal_value else (2, 1)

    def codegen(context, builder, signature, args):
        _, bits, x, count, factor, out = args
        total = cgutils.alloca_once_value(builder, I32(0))

        def emit(bits):
            lanes = per_word(bits) // parts
            with cgutils.for_range(builder, builder.udiv(count, I64(per_word(bits)))) as loop:
                first, vector = builder.mul(loop.index, I64(per_word(bits))), ir.VectorType(F32, lanes)
                q = [
                    _whole(builder, load(builder, x, builder.add(first, I64(j * lanes)), vector), factor)
                    for j in range(parts)
                ]
                numbers = [_lanes(builder, q)]
                if halves == 2:  # low bytes are signed: high ones make up for it
                    high = [builder.ashr(builder.add(y, constant(128, y)), constant(8, y)) for y in q]
                    numbers.append(_lanes(builder, high))
                store(builder, _alternate(builder, numbers), out, builder.mul(loop.index, I64(lanes * halves)))
                builder.store(builder.add(builder.load(total), emit_tree(builder, q, builder.add)), total)

        each(builder, bits, (2, 3, 4, 8), emit)
        return builder.load(total)

    return types.int32(looked_up, *[types.int64] * 3, types.float32, types.int64), codegen


@intrinsic(prefer_literal=True)
def page_weights(typingctx, looked_up, bits, p, scales, seen, top, out):
    """What multiplies the levels of a page: 32 weights p times the bfloat16 scales of its values, as whole numbers up
    to `top`; returns their step. p, scales, seen and out are addresses; p is added to the eight sums of `seen`.

    looked_up : see `whole_numbers`; bytes are unsigned here.
    """
    parts, halves = (_PARTS, _TIMES) if looked_up.literal_value else (2, 1)

    def codegen(context, builder, signature, args):
        _, bits, p, scales, seen, top, out = args
        p = [load(builder, p, I64(i), FLOATS) for i in range(0, PAGE, LANES)]
        total = builder.fadd(builder.fadd(p[0], p[1]), builder.fadd(p[2], p[3]))
        store(builder, builder.fadd(load(builder, seen, I64(0), FLOATS), total), seen, I64(0))
        w = [builder.fmul(x, emit_scales(builder, scales, I64(i * LANES))) for i, x in enumerate(p)]
        largest = emit_tree(builder, w, lambda x, y: emit_larger(builder, x, y))
        some = builder.fcmp_ordered(">", largest, F32(0.0))
        factor = builder.select(some, builder.fdiv(top, largest), F32(0.0))
        w = [builder.trunc(_whole(builder, x, factor), ir.VectorType(I16, LANES)) for x in w]
        while len(w) > 1:
            order = ir.Constant(ir.VectorType(I32, 2 * w[0].type.count), list(range(2 * w[0].type.count)))
            w = [builder.shuffle_vector(x, y, order) for x, y in zip(w[::2], w[1::2], strict=True)]
        w = builder.bitcast(w[0], ir.VectorType(ir.IntType(8), 2 * PAGE))

        def emit(bits):
            lanes, codes = per_word(bits) // parts, range(per_word(bits))
            order = []
            for first in range(0, PAGE, len(codes)):
                for lane in range(lanes):
                    four = [first + code for code in codes[lane::lanes]]
                    if halves == 2:
                        order += [2 * code + half for half in (0, 1) for code in four]
                    else:
                        order += [2 * code + half for code in four for half in (0, 1)]
            mixed = builder.shuffle_vector(w, w, ir.Constant(ir.VectorType(I32, 2 * PAGE), order))
            store(builder, mixed, out, I64(0))

        each(builder, bits, (2, 3, 4, 8), emit)
        return builder.fdiv(largest, top)

    return types.float32(looked_up, *[types.int64] * 4, types.float32, types.int64), codegen


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
