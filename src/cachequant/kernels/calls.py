"""Calls of the generated functions from Numba: the function's address comes first, other addresses are int64 too."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from cachequant.kernels.micro import POINTER

address, integer, real = types.CPointer(types.int8), types.int64, types.float32
_LLVM = {address: POINTER, integer: ir.IntType(64), real: ir.FloatType(), types.int32: ir.IntType(32)}


def _call(takes, returns=types.void):
    def codegen(context, builder, signature, args):
        result = ir.VoidType() if returns == types.void else _LLVM[returns]
        function = builder.inttoptr(args[0], ir.FunctionType(result, [_LLVM[t] for t in takes]).as_pointer())
        ready = [builder.inttoptr(a, POINTER) if t is address else a for a, t in zip(args[1:], takes, strict=True)]
        value = builder.call(function, ready)
        return context.get_dummy_value() if returns == types.void else value

    return returns(integer, *[integer if t is address else t for t in takes]), codegen


_TILE = [integer, address, address, integer, address, integer, address, address, integer]


@intrinsic
def chain(typingctx, function, rows, a, b, count, c, ldc, x_steps, w_steps, mode):
    """`micro.chain` for any number of rows."""
    return _call(_TILE)


@intrinsic
def blocks(typingctx, function, rows, a, b, count, c, ldc, x_steps, w_steps, mode, block, shift):
    """`micro.blocks` for any number of rows."""
    return _call([*_TILE, integer, integer])


@intrinsic
def largest(typingctx, function, x, count):
    """`rowops.largest`."""
    return _call([address, integer], real)


@intrinsic
def encode(typingctx, function, x, count, inverse, codes):
    """`rowops.encode`."""
    return _call([address, integer, real, address], types.int32)


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
