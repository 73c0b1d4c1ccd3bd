"""Codes and scales back out of the panels that kernels read, so that a layer need not keep them twice."""

import numpy as np

from cachequant.kernels.pack import EXPONENT, PackedMatrix
from cachequant.kernels.simd import WIDTH
from cachequant.quantize import Quantized
from cachequant.quantizers import Quantizer, Tensor


def unpack(matrix: PackedMatrix, quantizer: Quantizer) -> Quantized:
    """The `Quantized` that `pack.pack_codes` made into `matrix`, bit for bit."""
    panels = len(matrix.values)
    codes = matrix.values.transpose(0, 2, 1, 3).reshape(panels * WIDTH, -1)[: matrix.n, : matrix.k]
    if matrix.kernel_set.unsigned:
        codes = (codes.view(np.uint8) ^ np.uint8(0x80)).view(np.int8)
    scales = matrix.scales.transpose(0, 2, 1).reshape(panels * WIDTH, -1)[: matrix.n]
    if matrix.block < quantizer.block(matrix.k):
        scales = scales[:, :1]  # packing repeats the step of a very long row
    if quantizer.granularity == Tensor():
        scales = scales[:1]
    return Quantized(np.ascontiguousarray(codes), np.ascontiguousarray(_stored(matrix, scales, quantizer)), quantizer)


def _stored(matrix: PackedMatrix, scales: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    """Scales as checkpoints have them."""
    n = quantizer.scale.steps
    if n is None:
        return scales
    if matrix.scale_kind == EXPONENT:
        return np.where(scales == -127, np.int8(-128), scales)
    zero = scales == 0
    octaves = np.log2(np.where(zero, 1, scales).astype(np.float64) * quantizer.largest_code)
    dtype = np.dtype(quantizer.scale_dtype)
    return np.where(zero, np.iinfo(dtype).min, np.rint(n * octaves)).astype(dtype)
