"""The instruction at the heart of a micro-kernel: how inputs and weights are read, multiplied and added."""

from dataclasses import dataclass
from typing import ClassVar

from llvmlite import ir
from numba.core import cgutils

from cachequant.kernels.ir import F32, I32, emit_fma, splat
from cachequant.kernels.simd import KernelSet

I8, I16 = ir.IntType(8), ir.IntType(16)


@dataclass(frozen=True)
class Product:
    """Reads one vector of weights and one broadcast of inputs, and adds their products to a vector of sums."""

    name: str
    lanes: int
    group_bytes: int  # of one output's weights in one group of k
    integer: ClassVar[bool] = True
    unsigned: ClassVar[bool] = False

    @property
    def sums(self) -> ir.VectorType:
        return ir.VectorType(I32 if self.integer else F32, self.lanes)


class FusedFloat(Product):
    """float32: one fused multiply-add."""

    integer = False

    def weights(self, tile, base, offset):
        return tile.read(base, offset, self.sums)

    def inputs(self, tile, base, offset):
        return splat(tile.builder, tile.read(base, offset, F32), self.lanes)

    def add(self, tile, total, left, right):
        return emit_fma(tile.builder, left, right, total)


class PairsOfInt16(Product):
    """Codes widened to int16, two products added in int32: `vpmaddwd` by the pattern that LLVM knows it by."""

    def weights(self, tile, base, offset):
        codes = tile.read(base, offset, ir.VectorType(I8, 2 * self.lanes))
        return tile.builder.sext(codes, ir.VectorType(I16, 2 * self.lanes))

    def inputs(self, tile, base, offset):
        pair = splat(tile.builder, tile.read(base, offset, I32), self.lanes)
        return tile.builder.bitcast(pair, ir.VectorType(I16, 2 * self.lanes))

    def add(self, tile, total, left, right):
        builder, wide = tile.builder, ir.VectorType(I32, 2 * self.lanes)
        products = builder.mul(builder.sext(left, wide), builder.sext(right, wide))
        even, odd = (
            builder.shuffle_vector(
                products, products, ir.Constant(ir.VectorType(I32, self.lanes), list(range(i, 2 * self.lanes, 2)))
            )
            for i in (0, 1)
        )
        return builder.add(total, builder.add(even, odd))


class MaddAvx2(PairsOfInt16):
    """The same as an intrinsic: `vpmaddwd` (Intel SDM volume 2B, PMADDWD)."""

    def add(self, tile, total, left, right):
        pairs = ir.VectorType(I16, 2 * self.lanes)
        madd = cgutils.get_or_insert_function(
            tile.builder.module, ir.FunctionType(self.sums, [pairs, pairs]), "llvm.x86.avx2.pmadd.wd"
        )
        return tile.builder.add(total, tile.builder.call(madd, [left, right]))


def codes(kernel_set: KernelSet) -> Product:
    """The product of codes of a kernel set."""
    kind = {"avx2": MaddAvx2, "portable": PairsOfInt16}[kernel_set.name]
    return kind("codes", kernel_set.lanes, kernel_set.group)


def floats(kernel_set: KernelSet) -> Product:
    """The product of float32 values of a kernel set."""
    return FusedFloat("floats", kernel_set.lanes, 4)
