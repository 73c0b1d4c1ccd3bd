"""Register tiles of attention over one page of keys or values, and the softmax of a segment (AVX2, NEON or any other
vectors: LLVM lowers them).

Every output element of a tile is one chain of fused multiply-adds over ascending k, so its bits do not depend on which
tile shape computed it.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels import cpu, simd
from cachequant.kernels.ir import (
    F32,
    I32,
    I64,
    LANES,
    LINE,
    POINTER,
    add_neighbours,
    constant,
    emit_exp,
    emit_fma,
    emit_larger,
    emit_prefetch,
    emit_tree,
    load,
    splat,
    store,
)

SEGMENT = 256  # tokens between the cuts of a softmax: the row length of a score buffer
PAGE = 32
LEVEL = 2  # of cache that pages are fetched into
I8, I16 = ir.IntType(8), ir.IntType(16)
_AVX2 = "avx2" in cpu.features()
BYTES = "vpdpbusd" in simd.chosen().instruction  # where codes are looked up, products take four bytes, else two int16
WIDE = max(LANES, simd.chosen().lanes)  # of the exponentials, whose bits do not depend on it
RAISED = 128  # levels of keys are multiplied plus this number where they are bytes: one side has to be unsigned


def emit_tile(builder, shape, strides, operands, column, kind, first, term, last, ahead=None):
    """One rows x (vectors * lanes) block of a product, kept in registers over the whole loop over k.

    kind : of a sum. first(place) starts it, term(sum, left, right) goes on, last(sum, row, column, place) ends it.
    ahead : address of what is read next in the layout of b; it is fetched line by line, so that the products hide it.
    """
    (rows, vectors, lanes), (a_row, a_k) = shape, strides
    a, b, ldb, ldc, k = operands
    vector = ir.VectorType(kind, lanes)
    columns = [builder.add(column, I64(v * lanes)) for v in range(vectors)]
    places = [[builder.add(builder.mul(I64(r), ldc), j) for j in columns] for r in range(rows)]
    starts = [builder.mul(I64(r), a_row) for r in range(rows)]
    sums = [[cgutils.alloca_once_value(builder, first(p, vector)) for p in row] for row in places]
    with cgutils.for_range(builder, k) as loop:
        line = builder.mul(loop.index, ldb)
        right = [load(builder, b, builder.add(line, j), vector) for j in columns]
        for j in columns[:: LINE // (4 * lanes)] if ahead is not None else ():
            emit_prefetch(builder, builder.inttoptr(ahead, POINTER), builder.mul(builder.add(line, j), I64(4)), LEVEL)
        step = builder.mul(loop.index, a_k)
        for r in range(rows):
            left = splat(builder, load(builder, a, builder.add(step, starts[r]), kind), lanes)
            for v in range(vectors):
                builder.store(term(builder.load(sums[r][v]), left, right[v]), sums[r][v])
    for r in range(rows):
        for v in range(vectors):
            last(builder.load(sums[r][v]), r, columns[v], places[r][v])


@intrinsic(prefer_literal=True)
def product(typingctx, rows, vectors, lanes, a_row, a_k, accumulate, a, b, ldb, c, ldc, k, n, ahead):
    """c[r, j] (+)= sum over ascending k of a[r * a_row + k * a_k] * b[k * ldb + j] for r < rows, j < n.

    `ahead` is the address of a matrix like b to fetch meanwhile; the literal 0 fetches nothing.

    rows, vectors, lanes and accumulate are literals that shape the code: rows x vectors * lanes is the register tile,
    columns left over take narrower ones; a_row and a_k are better literals. a, b, c are addresses; strides count
    floats.
    """
    rows_, vectors_, lanes_, accumulate_ = (x.literal_value for x in (rows, vectors, lanes, accumulate))
    known = [getattr(x, "literal_value", None) for x in (a_row, a_k)]

    def codegen(context, builder, signature, args):
        strides = [arg if value is None else I64(value) for value, arg in zip(known, args[3:5], strict=True)]
        a, b, ldb, c, ldc, k, n = args[6:13]
        fetched = None if getattr(ahead, "literal_value", None) == 0 else args[13]

        def first(place, vector):
            if accumulate_:
                return load(builder, c, place, vector)
            return ir.Constant(vector, [0.0] * vector.count)

        done = I64(0)
        for count, lanes in dict.fromkeys(((vectors_, lanes_), (1, lanes_), (1, LANES), (1, 1))):
            width = I64(count * lanes)
            end = builder.mul(builder.udiv(n, width), width)
            with cgutils.for_range_slice(builder, done, end, width) as (column, _):
                emit_tile(
                    builder, (rows_, count, lanes), strides, (a, b, ldb, ldc, k), column, F32, first,
                    lambda total, left, right: emit_fma(builder, left, right, total),
                    lambda total, row, column, place: store(builder, total, c, place), fetched if count > 1 else None,
                )  # fmt: skip
            done = end
        return context.get_dummy_value()

    kinds = *[types.int64] * 7, ahead if isinstance(ahead, types.IntegerLiteral) else types.int64
    return types.void(rows, vectors, lanes, a_row, a_k, accumulate, *kinds), codegen


def emit_pairs(builder, total, left, right):
    """total + the sum of two products of int16: `vpmaddwd` (Intel SDM volume 2B, PMADDWD) or what is the same."""
    lanes = total.type.count
    left, right = (builder.bitcast(x, ir.VectorType(I16, 2 * lanes)) for x in (left, right))
    if _AVX2 and lanes == 8:
        function = ir.FunctionType(total.type, [left.type, right.type])
        madd = cgutils.get_or_insert_function(builder.module, function, "llvm.x86.avx2.pmadd.wd")
        return builder.add(total, builder.call(madd, [left, right]))
    wide = ir.VectorType(I32, 2 * lanes)
    return add_neighbours(builder, total, builder.sext(left, wide), builder.sext(right, wide), 2)


def emit_quads(builder, columns, total, left, right):
    """total + the sum of four products of bytes, `vpdpbusd` (Intel SDM volume 2C): unsigned are those of right with
    `columns`, else those of left.
    """
    function, name = ir.FunctionType(total.type, [total.type] * 3), f"llvm.x86.avx512.vpdpbusd.{32 * total.type.count}"
    dot = cgutils.get_or_insert_function(builder.module, function, name)
    return builder.call(dot, [total, right, left] if columns else [total, left, right])


def emit_scales(builder, base, index, lanes=LANES):
    """A vector of bfloat16 numbers as float32."""
    halves = ir.VectorType(I16, lanes)
    address = builder.add(base, builder.mul(index, I64(2)))
    bits = builder.load(builder.inttoptr(address, halves.as_pointer()))
    bits.align = 2
    bits = builder.zext(bits, ir.VectorType(I32, lanes))
    return builder.bitcast(builder.shl(bits, constant(16, bits)), ir.VectorType(F32, lanes))


def scaled(builder, columns, total, factors, addends, stride, row, column, c, place, raised=False):
    """Store sums of products of whole numbers as what they are worth; see `coded_product`.

    raised : an int32 two numbers behind addends is added to the sum: what raised levels bring in.
    """
    lanes = total.type.count

    def same(base, index, kind=F32):
        return splat(builder, load(builder, base, index, kind), lanes)

    at = builder.mul(I64(row), stride)
    if raised:
        total = builder.add(total, same(addends, builder.add(at, I64(2)), I32))
    values = builder.sitofp(total, ir.VectorType(F32, lanes))
    if columns:
        factor = builder.fmul(emit_scales(builder, factors, column, lanes), same(addends, at))
        plus = same(addends, builder.add(at, I64(1)))
    else:
        factor, plus = same(factors, at), load(builder, c, place, values.type)
    store(builder, emit_fma(builder, values, factor, plus), c, place)


@intrinsic(prefer_literal=True)
def coded_product(typingctx, rows, vectors, columns, a, a_row, b, n, factors, addends, stride, c, ldc, k):
    """c[r, j] = sum over k of the products of pairs a[r, k] and b[k, j], times a factor, plus something.

    Sums of int16 products are exact in int32, so their order does not matter. With `columns` the factor is the bfloat16
    factors[j] times addends[r * stride], plus the number behind that; else it is factors[r * stride], plus what c has.

    rows, vectors and columns are literals: rows x 8 * vectors is the register tile; n is a multiple of 8. a, b,
    factors, addends and c are addresses; strides count 4 bytes, k counts pairs.
    """
    rows_, vectors_, columns_ = (x.literal_value for x in (rows, vectors, columns))

    def codegen(context, builder, signature, args):
        a, a_row, b, n, factors, addends, stride, c, ldc, k = args[3:]

        def last(total, row, column, place):
            scaled(builder, columns_, total, factors, addends, stride, row, column, c, place)

        done = I64(0)
        for count in dict.fromkeys((vectors_, 1)):
            width = I64(count * LANES)
            end = builder.mul(builder.udiv(n, width), width)
            with cgutils.for_range_slice(builder, done, end, width) as (column, _):
                emit_tile(
                    builder, (rows_, count, LANES), (a_row, I64(1)), (a, b, n, ldc, k), column, I32,
                    lambda place, vector: ir.Constant(vector, [0] * vector.count),
                    lambda total, left, right: emit_pairs(builder, total, left, right), last,
                )  # fmt: skip
            done = end
        return context.get_dummy_value()

    return types.void(rows, vectors, columns, *[types.int64] * 10), codegen


@intrinsic
def softmax(typingctx, scores, blocks, stats):
    """Replace `blocks` * 32 scores at an address by p = exp(score - max); stats[0] = max, stats[1] = sum of p.

    Lane j sums the tokens congruent to j modulo 32 in ascending order, then the lanes are added by halving: trailing
    scores of -infinity add exact zeros, so the sum does not depend on how many of them there are.
    """

    def codegen(context, builder, signature, args):
        scores, blocks, stats = args
        vector, parts = ir.VectorType(F32, WIDE), PAGE // WIDE

        def index(loop, i):
            return builder.add(builder.mul(loop.index, I64(PAGE)), I64(i * WIDE))

        def larger(x, y):
            return emit_larger(builder, x, y)

        lowest = ir.Constant(vector, [float("-inf")] * WIDE)
        tops = [cgutils.alloca_once_value(builder, lowest) for _ in range(parts)]
        with cgutils.for_range(builder, blocks) as loop:
            for i, top in enumerate(tops):
                builder.store(larger(load(builder, scores, index(loop, i), vector), builder.load(top)), top)
        maximum = emit_tree(builder, [builder.load(t) for t in tops], larger)
        wide = splat(builder, maximum, WIDE)
        sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * WIDE)) for _ in range(parts)]
        with cgutils.for_range(builder, blocks) as loop:
            for i, total in enumerate(sums):
                p = emit_exp(builder, builder.fsub(load(builder, scores, index(loop, i), vector), wide), bounded=True)
                store(builder, p, scores, index(loop, i))
                builder.store(builder.fadd(builder.load(total), p), total)
        store(builder, maximum, stats, I64(0))
        store(builder, emit_tree(builder, [builder.load(s) for s in sums], builder.fadd), stats, I64(1))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen
