"""A row of floats folded into one number, as Numba intrinsics: in a fixed order, whatever the CPU's vector length."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels.ir import F32, I32, I64, LANES, constant, emit_fma, emit_larger, emit_tree, load, splat

SUMS = 4  # vectors that a row keeps at once: 32 partial results


def _fold(builder, bases, count, start, step, tree):
    """Fold `count` floats of each row in a fixed order: 32 strided partial results, a tree, then the rest one by one.

    `step(*x, total)` takes vectors or scalars, `tree(vectors)` gives the scalar of all partial results.
    """
    vector, width = ir.VectorType(F32, LANES), LANES * SUMS
    totals = [cgutils.alloca_once_value(builder, ir.Constant(vector, [start] * LANES)) for _ in range(SUMS)]
    blocks = builder.udiv(count, I64(width))
    with cgutils.for_range(builder, blocks) as loop:
        first = builder.mul(loop.index, I64(width))
        for i, total in enumerate(totals):
            x = [load(builder, base, builder.add(first, I64(i * LANES)), vector) for base in bases]
            builder.store(step(*x, builder.load(total)), total)
    rest = cgutils.alloca_once_value(builder, tree([builder.load(t) for t in totals]))
    with cgutils.for_range_slice(builder, builder.mul(blocks, I64(width)), count, I64(1)) as (index, _):
        builder.store(step(*(load(builder, base, index) for base in bases), builder.load(rest)), rest)
    return builder.load(rest)


def _added(builder):
    return lambda totals: emit_tree(builder, totals, builder.fadd)


@intrinsic
def row_sum(typingctx, base, count):
    """Sum of `count` floats at address `base`, in a fixed order."""

    def codegen(context, builder, signature, args):
        return _fold(builder, args[:1], args[1], 0.0, builder.fadd, _added(builder))

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def row_dot(typingctx, left, right, count):
    """Sum of the products of `count` floats at two addresses, in a fixed order."""

    def codegen(context, builder, signature, args):
        def step(x, y, total):
            return emit_fma(builder, x, y, total)

        return _fold(builder, args[:2], args[2], 0.0, step, _added(builder))

    return types.float32(*[types.int64] * 3), codegen


@intrinsic
def row_squares(typingctx, base, count, centre):
    """Sum of (x - centre)^2 over `count` floats at address `base`, in a fixed order."""

    def codegen(context, builder, signature, args):
        base, count, centre = args

        def step(x, total):
            c = splat(builder, centre, LANES) if isinstance(x.type, ir.VectorType) else centre
            difference = builder.fsub(x, c)
            return emit_fma(builder, difference, difference, total)

        return _fold(builder, [base], count, 0.0, step, _added(builder))

    return types.float32(types.int64, types.int64, types.float32), codegen


def _emit_largest(builder, base, count, start, of):
    def larger(x, y):
        return emit_larger(builder, x, y)

    return _fold(
        builder, [base], count, start, lambda x, top: larger(of(x), top), lambda tops: emit_tree(builder, tops, larger)
    )


@intrinsic
def row_max(typingctx, base, count):
    """Largest of `count` floats at address `base`; NaN is passed over."""

    def codegen(context, builder, signature, args):
        return _emit_largest(builder, *args, -np.inf, lambda x: x)

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def row_magnitude(typingctx, base, count):
    """Largest magnitude of `count` floats at address `base`; NaN is passed over."""

    def codegen(context, builder, signature, args):
        def magnitude(x):
            count = x.type.count if isinstance(x.type, ir.VectorType) else 0
            bits = builder.bitcast(x, ir.VectorType(I32, count) if count else I32)
            return builder.bitcast(builder.and_(bits, constant(0x7FFFFFFF, bits)), x.type)

        return _emit_largest(builder, *args, 0.0, magnitude)

    return types.float32(types.int64, types.int64), codegen
