"""From the packed codes of a page to the levels that they stand for, in registers (as in NoMAD-Attention, Zhang et al.
2024, and FAISS fast scan, André et al. 2017: a look-up is one shuffle).

A side of a page is a matrix [k][n] with n contiguous: keys [head_dim][32 tokens], values [32 tokens][head_dim]. Codes
of successive k share a 32-bit word of column n, so a vector holds 8 or 16 columns:

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
from cachequant.kernels.ir import F32, I32, I64, LANES, constant, load, splat, store
from cachequant.kernels.tiles import BYTES, I8, I16, PAGE, RAISED, WIDE, emit_pairs, emit_quads, scaled

WORDS = ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_AVX2, _VBMI = (name in cpu.features() for name in ("avx2", "avx512vbmi"))
_VECTOR = ir.VectorType(I32, WIDE if BYTES else LANES)  # of words and sums where codes are looked up
PARTS, TIMES = (4, 2) if BYTES else (2, 1)  # levels of a lane, and words that multiply it, where codes are looked up
_CHAINS = {1: 4, 3: 2 if "avx512vl" in cpu.features() else 1}  # of sums a row: they wait for each other, registers end


def _shifted(builder, word, by):
    """The word moved to the right by `by` bits, to the left if negative."""
    if by == 0:
        return word
    return builder.lshr(word, constant(by, word)) if by > 0 else builder.shl(word, constant(-by, word))


def _bytes(builder, word):
    return builder.bitcast(word, ir.VectorType(I8, 4 * word.type.count))


def _of_bytes(builder, name, left, right):
    """What an instruction makes of two vectors of bytes."""
    function = ir.FunctionType(left.type, [left.type] * 2)
    return builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.x86." + name), [left, right])


def _look_up(builder, table, indices):
    """table[index % 16] of every byte of the words."""
    words, indices = indices.type, _bytes(builder, indices)
    permuted = _VBMI and words.count == 16
    if not permuted:  # by `vpermb`, which alone ignores higher bits
        indices = builder.and_(indices, constant(15, indices))
    if _AVX2:
        levels = ir.Constant(indices.type, table * (words.count // 4))
        name = "avx512.permvar.qi.512" if permuted else {8: "avx2.pshuf.b", 16: "avx512.pshuf.b.512"}[words.count]
        return builder.bitcast(_of_bytes(builder, name, levels, indices), words)
    found = constant(table[0], indices)
    for i, level in enumerate(table[1:], 1):
        hit = builder.icmp_unsigned("==", indices, constant(i, indices))
        found = builder.select(hit, constant(level, indices), found)
    return builder.bitcast(found, words)


def _spread_signs(builder, signs, first):
    """Bits first + 4 b ... first + 4 b + 3 of a word, in the low half of its byte b; then the same two bits higher."""
    words = signs.type
    if _VBMI and words.count == 16:  # `vpmultishiftqb`: each byte becomes 8 bits of 64, from any one on
        signs = _bytes(builder, signs)
        first = splat(builder, builder.trunc(first, I8), signs.type.count)
        starts = [[(32 * (i // 4) + 4 * (i % 4) - by) % 64 for i in range(8)] for by in (0, 2)]
        places = [builder.add(first, ir.Constant(signs.type, x * (words.count // 2))) for x in starts]
        found = (_of_bytes(builder, "avx512.pmultishift.qb.512", x, signs) for x in places)
        return [builder.bitcast(x, words) for x in found]
    signs = _bytes(builder, builder.lshr(signs, splat(builder, first, words.count)))
    order = [4 * (i // 4) + i % 4 // 2 for i in range(signs.type.count)]
    mask = ir.Constant(ir.VectorType(I32, signs.type.count), order)
    signs = builder.bitcast(builder.shuffle_vector(signs, signs, mask), words)
    odd = builder.and_(_shifted(builder, signs, 4), constant(0x0F000F00, signs))
    signs = builder.or_(builder.and_(signs, constant(0x000F000F, signs)), odd)
    return signs, _shifted(builder, signs, -2)


def _indices(builder, bits, word, signs):
    """(bytes, codes) for every field of the words: codes[i] is the code of those bytes of which i are the low 4 bits.

    Half a byte may hold a neighbour too, so that it need not be masked out, and the other half anything.
    """
    halves = [_shifted(builder, word, by) for by in (0, 4)]
    if bits == 4:
        return [(half, list(range(16))) for half in halves]
    if bits == 2:
        return [(half, [i >> low & 3 for i in range(16)]) for half in halves for low in (0, 2)]
    found, (signs, above) = [], signs
    for f, (source, at) in enumerate(((above, 2), (above, 3), (signs, 2), (signs, 3))):
        magnitude = builder.and_(_shifted(builder, word, 2 * f), constant(0x03030303, word))
        source = builder.and_(source, constant(-0x03030304, word))
        found.append((builder.or_(magnitude, source), [i & 3 | (i >> at & 1) << 2 for i in range(16)]))
    return found


def emit_levels(builder, bits, word, signs=None, parts=2, raised=0):
    """(i, levels) for every lane i of the codes of a vector of words, `parts` levels to a lane, in the order that is
    easiest; four come plus `raised`."""
    if bits == 8:
        fields = [builder.xor(word, constant(-0x7F7F7F80, word)) if raised else word]
    else:
        levels = [sign * level + raised for sign in (1, -1) for level in LEVELS[bits]]
        levels = [x - 256 if x > 127 else x for x in levels]
        fields = [
            _look_up(builder, [levels[code] for code in codes], index)
            for index, codes in _indices(builder, bits, word, signs)
        ]
    for f, field in enumerate(fields):
        if parts == 4:
            yield f, field
        else:
            pairs = builder.bitcast(field, ir.VectorType(I16, 2 * word.type.count))
            eight = constant(8, pairs)
            yield f, builder.bitcast(builder.ashr(builder.shl(pairs, eight), eight), word.type)
            yield len(fields) + f, builder.bitcast(builder.ashr(pairs, eight), word.type)


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
            self._first = builder.trunc(builder.mul(builder.urem(loop.index, I64(2)), I64(16)), I32)

    def read(self, column, vector=WORDS):
        """A vector of words from a column on, and what `_spread_signs` makes of their signs."""
        builder = self._builder
        word = load(builder, self._codes, builder.add(self._line, column), vector)
        if self._bits != 3:
            return word, None
        signs = load(builder, self._codes, builder.add(self._signs, column), vector)
        return word, _spread_signs(builder, signs, self._first)


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

        def steps(bits, rows, first, width):
            """All whole steps of `width` columns from the first on; returns where they end."""
            starts, raised = [builder.mul(I64(r), a_row) for r in range(rows)], BYTES and columns_
            end, chains = builder.mul(builder.udiv(n, I64(width)), I64(width)), max(TIMES, _CHAINS[rows])
            zero = ir.Constant(_VECTOR, [0] * _VECTOR.count)
            with cgutils.for_range_slice(builder, first, end, I64(width)) as (column, _):
                at = [builder.add(column, I64(i)) for i in range(0, width, _VECTOR.count)]
                sums = [[[cgutils.alloca_once_value(builder, zero) for _ in range(chains)] for _ in at] for _ in starts]
                with cgutils.for_range(builder, builder.udiv(k, I64(per_word(bits)))) as loop:
                    lines = _Lines(builder, bits, codes, k, n, loop)
                    unit = builder.mul(loop.index, I64(per_word(bits) // PARTS * TIMES))
                    levels = (
                        emit_levels(builder, bits, *lines.read(x, _VECTOR), PARTS, RAISED if raised else 0) for x in at
                    )
                    for step in zip(*levels, strict=True):
                        for start, totals in zip(starts, sums, strict=True):
                            for half in range(TIMES):
                                place = builder.add(unit, I64(step[0][0] * TIMES + half))
                                left = splat(builder, load(builder, a, builder.add(place, start), I32), _VECTOR.count)
                                for parts, (i, right) in zip(totals, step, strict=True):
                                    part = parts[(i * TIMES + half) % chains]
                                    builder.store(_added(builder, columns_, builder.load(part), left, right), part)
                for r, totals in enumerate(sums):
                    for parts, x in zip(totals, at, strict=True):
                        place = builder.add(builder.mul(I64(r), ldc), x)
                        low, *high = (
                            reduce(builder.add, [builder.load(part) for part in parts[half::TIMES]])
                            for half in range(TIMES)
                        )
                        total = builder.add(low, _shifted(builder, high[0], -8)) if high else low
                        scaled(builder, columns_, total, factors, addends, stride, r, x, c, place, raised)
            return end

        def emit(bits, rows):
            done = I64(0)
            for width in dict.fromkeys((2 * _VECTOR.count, 2 * LANES)):
                done = steps(bits, rows, done, width)

        each(builder, rows, (1, 3), lambda r: each(builder, bits, (2, 3, 4, 8), lambda b: emit(b, r)))
        return context.get_dummy_value()

    return types.void(columns, *[types.int64] * 12), codegen
