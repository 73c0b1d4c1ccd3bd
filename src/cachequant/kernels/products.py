"""The instruction at the heart of a micro-kernel: how inputs and weights are read, multiplied and added."""

from dataclasses import dataclass

from llvmlite import ir
from numba.core import cgutils

from cachequant.kernels.ir import F32, I32, emit_fma, splat
from cachequant.kernels.simd import KernelSet

I8, I16 = ir.IntType(8), ir.IntType(16)


@dataclass(frozen=True)
class Product:
    """Reads a vector of weights and a broadcast of inputs, and adds their products to a vector of sums.

    lanes : 32-bit sums of one vector.
    group_bytes : bytes of one output's weights in one group of k.
    unsigned : whether weights are stored plus 128.
    instruction : LLVM's name of the instruction; empty for plain vector operations with the same results.
    """

    name: str
    lanes: int
    group_bytes: int
    unsigned: bool = False
    instruction: str = ""
    integer = True

    @property
    def sums(self) -> ir.VectorType:
        return ir.VectorType(I32 if self.integer else F32, self.lanes)

    def call(self, tile, *operands):
        kind = ir.FunctionType(self.sums, [x.type for x in operands])
        function = cgutils.get_or_insert_function(tile.builder.module, kind, self.instruction)
        return tile.builder.call(function, operands)


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
    """Codes widened to int16, two products added in int32: `vpmaddwd` (Intel SDM volume 2B, PMADDWD)."""

    def weights(self, tile, base, offset):
        codes = tile.read(base, offset, ir.VectorType(I8, 2 * self.lanes))
        return tile.builder.sext(codes, ir.VectorType(I16, 2 * self.lanes))

    def inputs(self, tile, base, offset):
        pair = splat(tile.builder, tile.read(base, offset, I32), self.lanes)
        return tile.builder.bitcast(pair, ir.VectorType(I16, 2 * self.lanes))

    def add(self, tile, total, left, right):
        if self.instruction:
            return tile.builder.add(total, self.call(tile, left, right))
        wide = ir.VectorType(I32, 2 * self.lanes)
        return _add_neighbours(tile.builder, total, tile.builder.sext(left, wide), tile.builder.sext(right, wide), 2)


class FoursOfInt8(Product):
    """Codes as they are, four products added in int32: `vpdpbusd` (Intel SDM, AVX-VNNI) and `sdot` (Arm DDI 0487).

    The first takes unsigned weights and signed inputs.
    """

    def weights(self, tile, base, offset):
        return tile.read(base, offset, ir.VectorType(I8, 4 * self.lanes))

    def inputs(self, tile, base, offset):
        four = splat(tile.builder, tile.read(base, offset, I32), self.lanes)
        return tile.builder.bitcast(four, ir.VectorType(I8, 4 * self.lanes))

    def add(self, tile, total, left, right):
        if self.instruction:
            return self.call(tile, total, right, left)
        builder, wide = tile.builder, ir.VectorType(I32, 4 * self.lanes)
        right = builder.zext(right, wide) if self.unsigned else builder.sext(right, wide)
        return _add_neighbours(builder, total, builder.sext(left, wide), right, 4)


def _add_neighbours(builder, total, left, right, count):
    """total + left * right, `count` neighbouring lanes added into one."""
    products, lanes = builder.mul(left, right), total.type.count
    for i in range(count):
        mask = ir.Constant(ir.VectorType(I32, lanes), list(range(i, count * lanes, count)))
        total = builder.add(total, builder.shuffle_vector(products, products, mask))
    return total


def codes(kernel_set: KernelSet) -> Product:
    """The product of codes of a kernel set."""
    kind = {2: PairsOfInt16, 4: FoursOfInt8}[kernel_set.group]
    return kind("codes", kernel_set.lanes, kernel_set.group, kernel_set.unsigned, kernel_set.instruction)


def floats(kernel_set: KernelSet) -> Product:
    """The product of float32 values of a kernel set."""
    return FusedFloat("floats", kernel_set.lanes, 4)
