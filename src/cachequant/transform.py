"""Changes of basis of a layer's inputs that its weights undo: x W' = (x T)(W T^-1')' for any invertible T.

An outlier costs everything that shares its scale. T spreads it over its neighbours before inputs are quantized: random
signs and a Walsh-Hadamard rotation in blocks (QuaRot: Ashkboos et al. 2024, section 3), or moves it from inputs to
weights, channel by channel (SmoothQuant: Xiao et al. 2023, section 4). Both are T = diag(factors) H. Weights are
changed once; inputs cost K log2(block) additions a row while the model runs.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from cachequant.schemes import Transform


@dataclass(frozen=True, eq=False)
class Basis:
    """A transform of inputs of K values: y = H (factors * x), H in blocks of `block` values and not normalized.

    factors : (K,) float32, none of them 0.
    block : a power of two that divides K; 1 leaves H out.
    """

    factors: np.ndarray
    block: int

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """(M, K) float32 inputs in the new basis."""
        return walsh_hadamard(x * self.factors, self.block)

    def weights(self, w: np.ndarray) -> np.ndarray:
        """(N, K) float32 weights for such inputs: `inputs(x) @ weights(w).T` is x @ w.T but for rounding."""
        return walsh_hadamard(w * (1 / self.factors), self.block) * np.float32(1 / self.block)


def basis(transform: Transform, k: int, inputs: np.ndarray | None = None, weights: np.ndarray | None = None) -> Basis:
    """The basis of inputs of `k` values.

    inputs, weights : (k,) largest magnitude of each channel, for smoothing.
    """
    transform.check(k)
    factors = signs(k, transform.seed) if transform.hadamard else np.ones(k, np.float32)
    if transform.smooth is not None:
        factors = factors * smoothing(inputs, weights, transform.smooth)
    return Basis(factors, min(transform.hadamard, k & -k) if transform.hadamard else 1)


@cache
def signs(k: int, seed: int) -> np.ndarray:
    """(k,) float32 of 1 and -1; raw bits of PCG64, which every version of NumPy gives alike.

    All matrices share them, so they stay in the processor's caches.
    """
    raw = np.atleast_1d(np.random.PCG64([seed, k]).random_raw(-(-k // 64)))
    bits = np.unpackbits(raw.astype("<u8").view(np.uint8))[:k]
    found = np.float32(1) - 2 * bits.astype(np.float32)
    found.flags.writeable = False
    return found


def smoothing(inputs: np.ndarray, weights: np.ndarray, alpha: float) -> np.ndarray:
    """(K,) float32 factors max|w|^(1 - alpha) / max|x|^alpha of channels (Xiao et al. 2023, eq. 4), 1 for idle ones."""
    used = (inputs > 0) & (weights > 0)
    x, w = (np.where(used, top, 1).astype(np.float64) for top in (inputs, weights))
    return (w ** (1 - alpha) / x**alpha).astype(np.float32)


def walsh_hadamard(x: np.ndarray, block: int) -> np.ndarray:
    """The (M, K) rows times the Walsh-Hadamard matrix of +-1 in blocks: log2(block) rounds of sums and differences."""
    m, k = x.shape
    step = 1
    while step < block:
        pairs = x.reshape(m, k // (2 * step), 2, step)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        step *= 2
    return x.reshape(m, k)
