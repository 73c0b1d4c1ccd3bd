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
way take pairs too, or four bytes where one instruction adds four products (`tiles.BYTES`). What multiplies them
is in `kernels.whole`.
"""

from functools import reduce

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels import cpu
from cachequant.kernels.codebooks import BITS, CODED, LEVELS
from cachequant.kernels.ir import F32, I32, I64, LANES, load, splat, store
from cachequant.kernels.tiles import BYTES, PAGE, RAISED, emit_pairs, emit_quads, scaled

WORDS = ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)
_BYTES, _PAIRS = ir.VectorType(ir.IntType(8), 4 * LANES), ir.VectorType(ir.IntType(16), 2 * LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_AVX2 = "avx2" in cpu.features()
PARTS, TIMES = (4, 2) if BYTES else (2, 1)  # levels of a lane, and words that multiply it, where codes are looked up
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
                at, chains = [column, builder.add(column, I64(LANES))], max(TIMES, _CHAINS[rows])
                sums = [
                    [[cgutils.alloca_once_value(builder, words(0)) for _ in range(chains)] for _ in at] for _ in starts
                ]
                with cgutils.for_range(builder, builder.udiv(k, I64(per_word(bits)))) as loop:
                    lines = _Lines(builder, bits, codes, k, n, loop)
                    unit = builder.mul(loop.index, I64(per_word(bits) // PARTS * TIMES))
                    levels = (emit_levels(builder, bits, *lines.read(x), PARTS, RAISED if raised else 0) for x in at)
                    for both in zip(*levels, strict=True):
                        for start, totals in zip(starts, sums, strict=True):
                            for half in range(TIMES):
                                place = builder.add(unit, I64(both[0][0] * TIMES + half))
                                left = splat(builder, load(builder, a, builder.add(place, start), I32), LANES)
                                for parts, (i, right) in zip(totals, both, strict=True):
                                    part = parts[(i * TIMES + half) % chains]
                                    builder.store(_added(builder, columns_, builder.load(part), left, right), part)
                for r, totals in enumerate(sums):
                    for parts, x in zip(totals, at, strict=True):
                        place = builder.add(builder.mul(I64(r), ldc), x)
                        low, *high = (
                            reduce(builder.add, [builder.load(part) for part in parts[half::TIMES]])
                            for half in range(TIMES)
                        )
                        total = builder.add(low, builder.shl(high[0], words(8))) if high else low
                        scaled(builder, columns_, total, factors, addends, stride, r, x, c, place, raised)

        each(builder, rows, (1, 3), lambda r: each(builder, bits, (2, 3, 4, 8), lambda b: emit(b, r)))
        return context.get_dummy_value()

    return types.void(columns, *[types.int64] * 12), codegen
