"""Calls of the generated functions from Numba: the function's address comes first, other addresses are int64 too."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cachequant.kernels.ir import POINTER

integer, real = types.int64, types.float32
address = "address"


def _call(takes):
    def codegen(context, builder, signature, args):
        kinds = [POINTER if t is address else ir.IntType(64) for t in takes]
        function = builder.inttoptr(args[0], ir.FunctionType(ir.VoidType(), kinds).as_pointer())
        builder.call(
            function, [builder.inttoptr(a, t) if t is POINTER else a for a, t in zip(args[1:], kinds, strict=True)]
        )
        return context.get_dummy_value()

    return types.void(integer, *[integer] * len(takes)), codegen


_TILE = [integer, address, address, integer, address, integer, address, address, integer]


@intrinsic
def call(typingctx, function, argument):
    """A function of one int64."""
    return _call([integer])


@intrinsic
def chain(typingctx, function, rows, a, b, count, c, ldc, x_steps, w_steps, mode):
    """`micro.chain` for any number of rows."""
    return _call(_TILE)


@intrinsic
def blocks(typingctx, function, rows, a, b, count, c, ldc, x_steps, w_steps, mode, block, shift):
    """`micro.blocks` for any number of rows."""
    return _call([*_TILE, integer, integer])


@intrinsic
def largest(typingctx, function, x, count, block, tops):
    """`rowops.largest`."""
    return _call([address, integer, integer, address])


@intrinsic
def encode(typingctx, function, x, count, block, most, inverses, codes, sums):
    """`rowops.encode`."""
    return _call([address, integer, integer, integer, address, address, address])


@intrinsic
def interleave(typingctx, function, lines, rows, count, units):
    """`rowops.interleave`."""
    return _call([address, integer, integer, address])


@intrinsic
def transform(typingctx, function, x, count, factors, block, out):
    """`hadamard.transform`."""
    return _call([address, integer, address, integer, address])


@intrinsic
def expand(typingctx, function, source, count, target):
    """`rowops.widen`, `rowops.steps_of_exponents` or `rowops.steps_of_halves`."""
    return _call([address, integer, address])


@intrinsic
def finish(typingctx, function, c, ldc, rows, bias, residual, ldr):
    """`rowops.finish`."""
    return _call([address, integer, integer, address, address, integer])


@intrinsic
def float_of_bits(typingctx, bits):
    """The float32 whose bits are the low 32 of an int64."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return real(integer), codegen


@intrinsic
def bits_of_float(typingctx, value):
    """The bits of a float32, in an int64."""

    def codegen(context, builder, signature, args):
        return builder.zext(builder.bitcast(args[0], ir.IntType(32)), ir.IntType(64))

    return integer(real), codegen
