"""The instruction at the heart of a micro-kernel: how inputs and weights are read, multiplied and added."""

from dataclasses import dataclass

from llvmlite import ir
from numba.core import cgutils

from cachequant.kernels.ir import F32, I32, I64, add_neighbours, constant, emit_fma, splat
from cachequant.kernels.simd import KernelSet

I8, I16 = ir.IntType(8), ir.IntType(16)


@dataclass(frozen=True)
class Product:
    """Reads a vector of weights and a broadcast of inputs, and adds their products to a vector of sums.

    lanes : 32-bit sums of one vector.
    group_bytes : bytes of one output's weights in one group of k.
    unsigned : whether weights are stored plus 128.
    units : 4-byte units of one row of inputs in one group of k.
    instruction : LLVM's name of the instruction; empty for plain vector operations with the same results.
    """

    name: str
    lanes: int
    group_bytes: int
    unsigned: bool = False
    instruction: str = ""
    units: int = 1
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


class WidenedCodes(Product):
    """Codes turned into float32 on the way, multiplied by float32 inputs of a single row, over ascending k."""

    integer = False

    def weights(self, tile, base, offset):
        """One vector of outputs for every k of the group, each 32-bit lane taken apart by shifts."""
        builder, count = tile.builder, self.units
        lanes = builder.bitcast(
            tile.read(base, offset, ir.VectorType(I8, count * self.lanes)), self._integers(8 * count)
        )
        if self.unsigned:
            lanes = builder.xor(lanes, constant(-0x7F7F7F80, lanes))
        if count == 2:
            lanes = builder.zext(lanes, self._integers(32))
        parts = [builder.shl(lanes, constant(24 - 8 * i, lanes)) for i in range(count)]
        return [builder.sitofp(builder.ashr(p, constant(24, p)), self.sums) for p in parts]

    def inputs(self, tile, base, offset):
        return [
            splat(tile.builder, tile.read(base, tile.builder.add(offset, I64(4 * i)), F32), self.lanes)
            for i in range(self.units)
        ]

    def add(self, tile, total, left, right):
        for x, w in zip(left, right, strict=True):
            total = emit_fma(tile.builder, x, w, total)
        return total

    def _integers(self, bits):
        return ir.VectorType(ir.IntType(bits), self.lanes)


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
        return add_neighbours(tile.builder, total, tile.builder.sext(left, wide), tile.builder.sext(right, wide), 2)


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
        return add_neighbours(builder, total, builder.sext(left, wide), right, 4)


def codes(kernel_set: KernelSet) -> Product:
    """The product of codes of a kernel set."""
    kind = {2: PairsOfInt16, 4: FoursOfInt8}[kernel_set.group]
    return kind("codes", kernel_set.lanes, kernel_set.group, kernel_set.unsigned, kernel_set.instruction)


def wide(kernel_set: KernelSet) -> Product:
    """The product of a single row of float32 inputs with codes."""
    return WidenedCodes("wide", kernel_set.lanes, kernel_set.group, kernel_set.unsigned, units=kernel_set.group)


def floats(kernel_set: KernelSet) -> Product:
    """The product of float32 values of a kernel set."""
    return FusedFloat("floats", kernel_set.lanes, 4)
