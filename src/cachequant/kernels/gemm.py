"""Matrix products out = x @ W.T + bias + residual, W packed once as float32 or as 8-bit codes.

Each output is one fixed sequence of operations, whatever the number of rows, the tile and the threads:
float32 is a chain of fused multiply-adds over ascending k; codes are exact int32 sums, times (input step * weight
step), blocks folded by fma in ascending order; codes with float32 inputs are a chain per block, times the weight step.
Work is cut along outputs and rows only (Goto & van de Geijn 2008). Nothing is validated here.
"""

from functools import cache

import numpy as np
from numba import types

from cachequant.kernels import get_threads, native, selfcheck
from cachequant.kernels.codes import multiply_codes
from cachequant.kernels.floats import multiply_floats
from cachequant.kernels.pack import PackedMatrix, longest, rows
from cachequant.kernels.pack import pack_codes as _pack_codes
from cachequant.kernels.pack import pack_fp32 as _pack_fp32
from cachequant.kernels.quantize_rows import RECORD, form_of
from cachequant.quantize import Quantized
from cachequant.schemes import BITS, Quantizer, Tensor
from cachequant.transform import Basis

__all__ = ["PackedMatrix", "matmul", "pack_codes", "pack_fp32", "rows"]

_NONE1, _NONE2 = np.empty(0, np.float32), np.empty((0, 0), np.float32)
_MATRIX, _VECTOR, _INT = types.float32[:, ::1], types.float32[::1], types.int64
_TYPES = {
    multiply_codes: [types.int64[::1], _INT, _MATRIX, types.int64[::1], *[_INT] * 4, _VECTOR, _MATRIX, _MATRIX],
    multiply_floats: [types.int64[::1], _INT, _MATRIX, *[_INT] * 5, _VECTOR, _MATRIX, _MATRIX],
}


@cache
def _compiled(function):
    """Entry point of a compiled function: called directly, it saves the time that looking up the types takes."""
    return function.compile(tuple(_TYPES[function]))


def pack_fp32(w: np.ndarray) -> PackedMatrix:
    """Pack a (N, K) float32 matrix for the kernels of this CPU."""
    return _pack_fp32(w, selfcheck.active())


def pack_codes(q: Quantized, inputs: Quantizer | None = None, basis: Basis | None = None) -> PackedMatrix:
    """Pack (N, K) codes and their scales for the kernels of this CPU that take such `inputs` (None: float32).

    With a `basis` the codes are those of `basis.weights(w)`, and inputs are transformed before they are quantized.
    """
    return _pack_codes(q, selfcheck.active(wide=inputs is not None and inputs.bits > BITS), basis)


def matmul(
    x: np.ndarray,
    w: PackedMatrix,
    activation: Quantizer | None = None,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """x @ W.T + bias + residual in float32.

    Parameters
    ----------
    x : (M, K) float32.
    w : packed (N, K) weights.
    activation : how the rows of x are quantized on the way (with codes only); None multiplies them in float32.
    bias : (N,) float32.
    residual : (M, N) float32; not the memory of `out`.
    out : (M, N) float32, C-contiguous; made if None.
    """
    x = np.ascontiguousarray(x, np.float32)
    if out is None:
        out = np.empty((len(x), w.n), np.float32)
    if not len(x):
        return out
    bias = _NONE1 if bias is None else np.ascontiguousarray(bias, np.float32)
    residual = _NONE2 if residual is None else np.ascontiguousarray(residual, np.float32)
    call = w.call
    if call[0] is not activation:
        call = w.call = _bind(w, activation)
    _, function, table, numbers = call
    function(table, get_threads(), x, *numbers, bias, residual, out)
    return out


def _bind(w: PackedMatrix, activation: Quantizer | None):
    """The compiled function for inputs in that format, and what it takes besides arrays: found once per matrix."""
    weights = w.address, w.scale_address, w.scale_kind, w.block
    table = native.table(w.kernel_set)
    if activation is None:
        return activation, _compiled(multiply_floats), table, (*weights, w.kind == "codes")
    return activation, _compiled(multiply_codes), table, (form(w, activation), *weights)


def form(w: PackedMatrix, activation: Quantizer | None) -> np.ndarray | None:
    """How inputs of the matrix become codes, see `quantize_rows.form_of`; None if they stay float32."""
    if activation is None:
        return None
    return form_of(activation, w.k, min(w.block, longest(activation.bits)), w.basis)


def steps_of_row(w: PackedMatrix, form: np.ndarray | None) -> int:
    """How many float32 the steps of one row of inputs take."""
    return 0 if form is None else -(-w.k // int(form[RECORD])) * (1 + w.kernel_set.unsigned)


def shared(activation: Quantizer | None) -> bool:
    """Whether one scale serves all rows of inputs."""
    return activation is not None and activation.granularity == Tensor()
