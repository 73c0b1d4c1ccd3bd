"""LLVM IR building blocks of the attention and pointwise kernels, as Numba intrinsics.

Numba emits neither fused multiply-adds nor a vector exponential by itself, and its loops may not reorder float sums, so
the few places that need them are written here as IR: the same instructions on scalars (which LLVM then vectorizes
lane by lane, without changing a bit) and on vectors. Addresses are int64, sizes count float32 elements.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
LANES = 8
POINTER = ir.IntType(8).as_pointer()
LINE = 64  # bytes of a cache line


def constant(value, like):
    """A scalar or splat constant of the same type as the value `like`."""
    if isinstance(like.type, ir.VectorType):
        return ir.Constant(like.type, [value] * like.type.count)
    return ir.Constant(like.type, value)


def at(builder, base, index, type_):
    """Pointer to element `index` (of float32) after the address `base`."""
    pointer = builder.gep(builder.inttoptr(base, F32.as_pointer()), [index])
    return builder.bitcast(pointer, type_.as_pointer())


def load(builder, base, index, type_=F32):
    value = builder.load(at(builder, base, index, type_))
    value.align = 4
    return value


def store(builder, value, base, index):
    builder.store(value, at(builder, base, index, value.type)).align = 4


def splat(builder, scalar, lanes):
    vector = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def emit_fma(builder, a, b, c):
    """a * b + c with one rounding."""
    suffix = f"v{a.type.count}f32" if isinstance(a.type, ir.VectorType) else "f32"
    function = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, function, "llvm.fma." + suffix), [a, b, c])


def add_neighbours(builder, total, left, right, count):
    """total + left * right, `count` neighbouring lanes added into one."""
    products, lanes = builder.mul(left, right), total.type.count
    for i in range(count):
        mask = ir.Constant(ir.VectorType(I32, lanes), list(range(i, count * lanes, count)))
        total = builder.add(total, builder.shuffle_vector(products, products, mask))
    return total


def emit_prefetch(builder, base, offset, level=1):
    """Ask for a cache line, in that level of cache: hardware prefetchers stop at the end of a page of memory.

    Measured at M = 1 from DRAM: +25 to 30 % for codes.
    """
    kind = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.gep(base, [offset]), I32(0), I32(4 - level), I32(1)])


def emit_exp(builder, x, bounded=False):
    """e^x to about 1e-7 relative, 0 below -87.3, infinity above 88.7 (Cephes expf: Moshier 1989).

    bounded : x is at most 0, so nothing is compared with the upper end.

    x = n ln 2 + r; adding 1.5 * 2^23 rounds x / ln 2 to the integer n and leaves n in the low bits.
    """

    def c(value):
        return constant(float(np.float32(value)), x)

    integers = ir.VectorType(I32, x.type.count) if isinstance(x.type, ir.VectorType) else I32
    shifted = emit_fma(builder, x, c(1.44269504088896341), c(12582912.0))
    n = builder.fsub(shifted, c(12582912.0))
    r = emit_fma(builder, n, c(-0.693359375), x)
    r = emit_fma(builder, n, c(2.12194440e-4), r)
    y = c(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        y = emit_fma(builder, y, r, c(coefficient))
    y = emit_fma(builder, builder.fmul(y, r), r, r)
    y = builder.fadd(y, c(1.0))
    bits = builder.bitcast(shifted, integers)
    power = builder.shl(bits, constant(23, bits))
    y = builder.bitcast(builder.add(builder.bitcast(y, integers), power), x.type)
    y = builder.select(builder.fcmp_ordered("<", x, c(-87.33654)), c(0.0), y)
    return y if bounded else builder.select(builder.fcmp_ordered(">", x, c(88.72283)), c(np.inf), y)


def emit_larger(builder, x, y):
    """x if x > y, else y."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def emit_tree(builder, vectors, combine):
    """Combine all lanes of the vectors by halving: a fixed order."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [combine(a, b) for a, b in zip(vectors[:half], vectors[half:], strict=True)]
    vector, lanes = vectors[0], vectors[0].type.count
    while lanes > 1:
        lanes //= 2
        low, high = (
            builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, lanes), list(range(i, i + lanes))))
            for i in (0, lanes)
        )
        vector = combine(low, high)
    return builder.extract_element(vector, I32(0))


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c in float32 with one rounding."""

    def codegen(context, builder, signature, args):
        return emit_fma(builder, *args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def exp(typingctx, x):
    """e^x in float32; see `emit_exp`."""

    def codegen(context, builder, signature, args):
        return emit_exp(builder, args[0])

    return types.float32(types.float32), codegen


@intrinsic
def put(typingctx, address, index, value):
    """Write element `index` (of float32) after an address: an array over it would cost a call to count references."""

    def codegen(context, builder, signature, args):
        address, index, value = args
        store(builder, value, address, index)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


@intrinsic
def pointer(typingctx, address):
    """An int64 address as a pointer for `numba.carray`."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@intrinsic
def fetch_add(typingctx, address):
    """Add 1 to the int64 at `address`, atomically, and return what was there: hands out jobs to threads."""

    def codegen(context, builder, signature, args):
        target = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("add", target, I64(1), "seq_cst")

    return types.int64(types.int64), codegen


@intrinsic
def prefetch(typingctx, address, count):
    """Ask for `count` bytes at an address, and the rest of four cache lines, to be in the second level of cache."""

    def codegen(context, builder, signature, args):
        address, count = args
        base = builder.inttoptr(address, POINTER)
        with cgutils.for_range_slice(builder, I64(0), count, I64(4 * LINE)) as (offset, _):
            for line in range(0, 4 * LINE, LINE):
                emit_prefetch(builder, base, builder.add(offset, I64(line)), 2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


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
