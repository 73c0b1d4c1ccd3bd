"""The road from a textbook loop to the SIMD kernel: the same exact integer product, three times.

Each rung multiplies int8 codes of activations (M, K) with int8 codes of weights and fills an int32 (M, N). Sums of
integers do not depend on their order, so all rungs agree to the last bit; what differs is how often a value is loaded
and how many products an instruction makes. The top rung is `gemm.matmul`, which also applies the scales before a sum
leaves the registers.
"""

import numpy as np
from numba import int32, njit, prange

from cachequant.quantize import Quantized, quantize

TILE = 32  # weight rows that stay in the first-level cache while every token passes: 18 KB at K = 576


@njit(cache=True)
def triple_loop(a, b, out):
    """As a textbook writes it, weights as (K, N): one thread, and N bytes between neighbours in k."""
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = int32(0)
            for k in range(a.shape[1]):
                total += int32(a[i, k]) * int32(b[k, j])
            out[i, j] = total


@njit(cache=True, parallel=True)
def blocked(a, b, out):
    """Weights as (N, K), so that both operands are read in order; a tile of weight rows serves every token in turn."""
    for tile in prange((b.shape[0] + TILE - 1) // TILE):
        for i in range(a.shape[0]):
            for j in range(tile * TILE, min((tile + 1) * TILE, b.shape[0])):
                total = int32(0)
                for k in range(a.shape[1]):
                    total += int32(a[i, k]) * int32(b[j, k])
                out[i, j] = total


def rescale(sums, x: Quantized, w: Quantized):
    """(M, N) float32 from the integer sums: one product with the two steps, multiplied as in the SIMD kernel."""
    return sums.astype(np.float32) * (x.steps() * w.steps().T)


def layout(rung, w: Quantized):
    """Codes of the weights as the rung reads them."""
    return np.ascontiguousarray(w.codes.T) if rung is triple_loop else w.codes


def linear(rung, x, w: Quantized, codes):
    """A whole layer through one rung: quantize the rows of `x` (M, K) float32, multiply, rescale; (M, N) float32.

    `w` has one scale a row and gives `x` its format; `codes` is its `layout`.
    """
    q = quantize(x, w.quantizer)
    sums = np.empty((len(x), len(w.codes)), np.int32)
    rung(q.codes, codes, sums)
    return rescale(sums, q, w)
