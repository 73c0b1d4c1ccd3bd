"""Queries and weights as the whole numbers of 16 bits that multiply codes.

They come in the order of the levels in `kernels.coded`: pairs of int16, or, where products take bytes, the low and then
the high bytes of four.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cachequant.kernels.coded import FLOATS, PARTS, TIMES, each, per_word
from cachequant.kernels.ir import F32, I32, I64, LANES, constant, emit_larger, emit_tree, load, splat, store
from cachequant.kernels.tiles import I8, I16, PAGE, emit_scales


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
    parts, halves = (PARTS, TIMES) if looked_up.literal_value else (2, 1)

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
    parts, halves = (PARTS, TIMES) if looked_up.literal_value else (2, 1)

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
        w = builder.bitcast(w[0], ir.VectorType(I8, 2 * PAGE))

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
