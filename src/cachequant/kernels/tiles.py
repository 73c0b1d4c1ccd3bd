"""Register tiles of attention over one page of keys or values, and the softmax of a segment (AVX2, NEON or any other
vectors: LLVM lowers them).

Every output element of a tile is one chain of fused multiply-adds over ascending k, so its bits do not depend on which
tile shape computed it.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels.ir import F32, I64, LANES, emit_exp, emit_fma, emit_larger, emit_tree, load, splat, store

SEGMENT = 256  # tokens between the cuts of a softmax: the row length of a score buffer
PAGE = 32


def emit_tile(builder, shape, strides, accumulate, operands, column):
    """One rows x (vectors * lanes) block of `product`, kept in registers over the whole loop over k."""
    (rows, vectors, lanes), (a_row, a_k) = shape, strides
    a, b, ldb, c, ldc, k = operands
    vector = ir.VectorType(F32, lanes)
    columns = [builder.add(column, I64(v * lanes)) for v in range(vectors)]
    places = [[builder.add(builder.mul(I64(r), ldc), j) for j in columns] for r in range(rows)]
    zero = ir.Constant(vector, [0.0] * lanes)
    sums = [
        [cgutils.alloca_once_value(builder, load(builder, c, p, vector) if accumulate else zero) for p in row]
        for row in places
    ]
    with cgutils.for_range(builder, k) as loop:
        line = builder.mul(loop.index, ldb)
        right = [load(builder, b, builder.add(line, j), vector) for j in columns]
        step = builder.mul(loop.index, I64(a_k))
        for r in range(rows):
            left = splat(builder, load(builder, a, builder.add(step, I64(r * a_row))), lanes)
            for v in range(vectors):
                builder.store(emit_fma(builder, left, right[v], builder.load(sums[r][v])), sums[r][v])
    for r in range(rows):
        for v in range(vectors):
            store(builder, builder.load(sums[r][v]), c, places[r][v])


@intrinsic(prefer_literal=True)
def product(typingctx, rows, vectors, a_row, a_k, accumulate, a, b, ldb, c, ldc, k, n):
    """c[r, j] (+)= sum over ascending k of a[r * a_row + k * a_k] * b[k * ldb + j] for r < rows, j < n.

    The first five arguments are literals that shape the code: rows x 8 * vectors is the register tile, columns left
    over take narrower ones. a, b, c are addresses; strides count floats.
    """
    rows_, vectors_, a_row_, a_k_, accumulate_ = (x.literal_value for x in (rows, vectors, a_row, a_k, accumulate))

    def codegen(context, builder, signature, args):
        *operands, n = args[5:]
        done = I64(0)
        for count, lanes in ((vectors_, LANES), (1, LANES), (1, 1)):
            width = I64(count * lanes)
            end = builder.mul(builder.udiv(n, width), width)
            with cgutils.for_range_slice(builder, done, end, width) as (column, _):
                emit_tile(builder, (rows_, count, lanes), (a_row_, a_k_), accumulate_, operands, column)
            done = end
        return context.get_dummy_value()

    return types.void(rows, vectors, a_row, a_k, accumulate, *[types.int64] * 7), codegen


@intrinsic
def softmax(typingctx, scores, blocks, stats):
    """Replace `blocks` * 32 scores at an address by p = exp(score - max); stats[0] = max, stats[1] = sum of p.

    Lane j sums the tokens congruent to j modulo 32 in ascending order, then the lanes are added by halving: trailing
    scores of -infinity add exact zeros, so the sum does not depend on how many of them there are.
    """

    def codegen(context, builder, signature, args):
        scores, blocks, stats = args
        vector, parts = ir.VectorType(F32, LANES), PAGE // LANES

        def index(loop, i):
            return builder.add(builder.mul(loop.index, I64(PAGE)), I64(i * LANES))

        def larger(x, y):
            return emit_larger(builder, x, y)

        lowest = ir.Constant(vector, [float("-inf")] * LANES)
        tops = [cgutils.alloca_once_value(builder, lowest) for _ in range(parts)]
        with cgutils.for_range(builder, blocks) as loop:
            for i, top in enumerate(tops):
                builder.store(larger(load(builder, scores, index(loop, i), vector), builder.load(top)), top)
        maximum = emit_tree(builder, [builder.load(t) for t in tops], larger)
        wide = splat(builder, maximum, LANES)
        sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES)) for _ in range(parts)]
        with cgutils.for_range(builder, blocks) as loop:
            for i, total in enumerate(sums):
                p = emit_exp(builder, builder.fsub(load(builder, scores, index(loop, i), vector), wide))
                store(builder, p, scores, index(loop, i))
                builder.store(builder.fadd(builder.load(total), p), total)
        store(builder, maximum, stats, I64(0))
        store(builder, emit_tree(builder, [builder.load(s) for s in sums], builder.fadd), stats, I64(1))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen
