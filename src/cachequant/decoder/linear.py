"""Linear layers in the packed form that the kernels read."""

from dataclasses import dataclass

import numpy as np

from cachequant import quantize
from cachequant.assets.mapped import release
from cachequant.errors import InputError
from cachequant.kernels import gemm, simd
from cachequant.kernels.pack import write_panels
from cachequant.kernels.rotate import rotate
from cachequant.quantize import Quantized
from cachequant.schemes import Quantizer, Scheme, Tensor, Transform
from cachequant.transform import Basis, basis

PIECE = 1 << 20  # values of a matrix that are quantized or packed at once: bounds the memory beside the result


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """`x @ W.T + b` for one matrix, or several stacked along their outputs.

    weight : packed (N, K) matrix, float32 or 8-bit codes.
    bias : (N,) float32, or None.
    activation : how inputs are quantized; None multiplies them in float32.
    """

    weight: gemm.PackedMatrix
    bias: np.ndarray | None = None
    activation: Quantizer | None = None

    def __call__(self, x: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
        """(T, K) float32 -> (T, N) float32, plus `residual` (T, N) if given."""
        return gemm.matmul(x, self.weight, self.activation, self.bias, residual)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (self.bias.nbytes if self.bias is not None else 0)


def pack(
    weights: list[np.ndarray | Quantized],
    biases: list[np.ndarray | None],
    scheme: Scheme,
    largest: np.ndarray | None = None,
) -> PackedLinear:
    """Quantize each (N_i, K) matrix of a decoder block alone, then stack them, so that stacking changes no value.

    Pages of a mapped file that the weights are views of are given back.

    weights : float32, or codes in the scheme's format: of a checkpoint, or of a source that has such codes.
    largest : (K,) largest inputs, for a scheme that is calibrated.
    """
    if scheme.weight is None:
        packed = _pack_fp32(weights[0] if len(weights) == 1 else np.concatenate(weights))
    else:
        if scheme.transform and isinstance(weights[0], Quantized):  # then all are
            changed = basis(scheme.transform, weights[0].codes.shape[1])
        else:
            changed = scheme.transform and _basis(scheme.transform, weights, largest)
        weights = [w if isinstance(w, Quantized) else quantize_matrix(w, scheme.weight, changed) for w in weights]
        stacked = weights[0] if len(weights) == 1 else quantize.concatenate(weights)
        packed = gemm.pack_codes(stacked, scheme.activation, changed)
    for w in weights:
        release(w.codes if isinstance(w, Quantized) else w)
    if all(b is None for b in biases):
        bias = None
    else:
        rows = [len(w.codes if isinstance(w, Quantized) else w) for w in weights]
        filled = [np.zeros(n, np.float32) if b is None else b for n, b in zip(rows, biases, strict=True)]
        bias = np.concatenate(filled)
    return PackedLinear(packed, bias, scheme.activation)


def quantize_matrix(w: np.ndarray, quantizer: Quantizer, changed: Basis | None = None) -> Quantized:
    """Codes of an (N, K) float32 matrix, in the basis `changed` of its inputs if that is given.

    Rows are quantized a piece at a time, and pages of a mapped file are given back after each piece.
    """
    rows = len(w) if quantizer.granularity == Tensor() else _piece(w)
    parts = []
    for start in range(0, len(w), rows):
        part = w[start : start + rows]
        if changed:
            turned = rotate(part, 1 / changed.factors, changed.block) * np.float32(1 / changed.block)
        parts.append(quantize.quantize(turned if changed else part, quantizer))
        release(part)
    return parts[0] if len(parts) == 1 else quantize.concatenate(parts)


def _pack_fp32(w: np.ndarray) -> gemm.PackedMatrix:
    """`gemm.pack_fp32` a piece at a time, so that a mapped matrix is never in memory beside its packed form."""
    rows = _piece(w)
    if rows >= len(w):
        return gemm.pack_fp32(w)
    packed = gemm.pack_fp32(np.broadcast_to(np.float32(0), w.shape))
    for start in range(0, len(w), rows):
        write_panels(packed.values[start // simd.WIDTH :], w[start : start + rows])
        release(w[start : start + rows])
    return packed


def _piece(w: np.ndarray) -> int:
    """Rows of a piece: whole panels."""
    return max(1, PIECE // w.shape[1] // simd.WIDTH) * simd.WIDTH


def _basis(transform: Transform, weights: list[np.ndarray], largest: np.ndarray | None) -> Basis:
    if transform.smooth is None:
        return basis(transform, weights[0].shape[1])
    if largest is None:
        raise InputError("smoothing needs the largest inputs of a model's layer; a matrix alone has none")
    return basis(transform, len(largest), largest, np.max([np.abs(w).max(0) for w in weights], 0))


def pack_head(weight: np.ndarray, scheme: Scheme) -> PackedLinear:
    """The (V, width) output projection; with a quantized head its inputs share the head's granularity, exact scales."""
    return pack([weight], [None], Scheme("head", scheme.head, head_inputs(scheme)))


def head_inputs(scheme: Scheme) -> Quantizer | None:
    """How the inputs of the output projection are quantized; None multiplies them in float32."""
    head = scheme.head
    return Quantizer(head.granularity, head.scale) if head and scheme.activation else None
