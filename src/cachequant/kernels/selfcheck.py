"""Start-up check of the kernels against NumPy: what this CPU, or this build of LLVM, gets wrong is not used."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np

from cachequant.errors import CachequantError
from cachequant.kernels import pack, simd
from cachequant.quantize import dequantize, quantize
from cachequant.schemes import BFP8, CODE_BITS, INT8

ROWS, OUTPUTS, K = 7, 35, 291  # a full tile and a rest of rows, panels and k


def active(wide: bool = False) -> simd.KernelSet:
    """The kernel set in use: the best one of this CPU that is sound, with a warning for each that is not.

    wide : the best one for inputs of more than 8 bits.

    Raises
    ------
    CachequantError : none is sound.
    """
    return first_sound(tuple(simd.available(wide)))


@cache
def first_sound(kernel_sets: tuple[simd.KernelSet, ...]) -> simd.KernelSet:
    """The first kernel set that computes right; see `active`."""
    for kernel_set in kernel_sets:
        faults = check(kernel_set)
        if not faults:
            return kernel_set
        warnings.warn(f"kernel set {kernel_set.name!r} computes wrong {', '.join(faults)}; not used", stacklevel=2)
    raise CachequantError("no kernel set passes its check on this CPU; `cachequant doctor` lists what was tried")


def check(kernel_set: simd.KernelSet) -> list[str]:
    """Names of the products that differ from NumPy's by more than the rounding of K additions."""
    from cachequant.kernels import gemm  # which asks this module for its kernel set

    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-1, 1, (rows, K)).astype(np.float32) for rows in (ROWS, OUTPUTS))
    x[0] = w[0] = 1  # the largest sums of codes
    bound = K * np.finfo(np.float32).eps * (np.abs(x) @ np.abs(w).T)
    cases = {"fp32": (pack.pack_fp32(w, kernel_set), None, x @ w.T)}
    for quantizer in (INT8, BFP8):
        q = quantize(w, quantizer)
        matrix, values = pack.pack_codes(q, kernel_set), dequantize(q).T
        cases[quantizer.name] = matrix, quantizer, dequantize(quantize(x, quantizer)) @ values
        cases[quantizer.name + " weights"] = matrix, None, x @ values
    if kernel_set.wide:
        inputs, q = replace(INT8, bits=max(CODE_BITS)), quantize(w, INT8)
        cases[inputs.name] = pack.pack_codes(q, kernel_set), inputs, dequantize(quantize(x, inputs)) @ dequantize(q).T
    return [
        name
        for name, (matrix, activation, truth) in cases.items()
        if not (np.abs(gemm.matmul(x, matrix, activation) - truth) <= bound).all()
    ]
