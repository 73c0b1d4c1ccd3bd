"""Changes of basis of a layer's inputs that its weights undo: x W' = (x T)(W T^-1')' for any invertible T.

An outlier costs everything that shares its scale. T spreads it over its neighbours before inputs are quantized: random
signs and a Walsh-Hadamard rotation in blocks (QuaRot: Ashkboos et al. 2024, section 3), or moves it from inputs to
weights, channel by channel (SmoothQuant: Xiao et al. 2023, section 4). Both are T = diag(factors) H. Weights are
changed once; inputs cost K log2(block) additions a row while the model runs.
"""

from dataclasses import dataclass

import numpy as np

from cachequant.errors import InputError

SMALLEST_BLOCK, LARGEST_BLOCK = 4, 4096  # of a rotation: fewer values spread nothing; more leave the L1 cache


@dataclass(frozen=True)
class Transform:
    """How the inputs of every block matrix are transformed.

    hadamard : values that are rotated together, a power of two; rows of K take the largest one that divides K and is
        not above this. None: no rotation.
    seed : of the random signs in front of the rotation.
    smooth : alpha of SmoothQuant, from 0 (the weights' channels become equally large) to 1 (the inputs' do). None: no
        smoothing.
    """

    hadamard: int | None = None
    seed: int = 0
    smooth: float | None = None

    def __post_init__(self):
        h, alpha = self.hadamard, self.smooth
        if h is not None and not (SMALLEST_BLOCK <= h <= LARGEST_BLOCK and h & (h - 1) == 0):
            raise InputError(
                f"a rotation over {h!r} values: allowed are powers of two from {SMALLEST_BLOCK} to {LARGEST_BLOCK}"
            )
        if alpha is not None and not 0 <= alpha <= 1:
            raise InputError(f"smoothing with alpha {alpha!r}: allowed is 0 to 1")

    def check(self, k: int) -> None:
        """Raises InputError if inputs of `k` values cannot be rotated, because no block divides them."""
        if not self.fits(k):
            raise InputError(f"inputs of {k} values cannot be rotated: {k} is not a multiple of {SMALLEST_BLOCK}")

    def fits(self, k: int) -> bool:
        """Whether inputs of `k` values can be transformed."""
        return self.hadamard is None or k % SMALLEST_BLOCK == 0

    def basis(self, k: int, inputs: np.ndarray | None = None, weights: np.ndarray | None = None) -> "Basis":
        """The transform for inputs of `k` values.

        inputs, weights : (k,) largest magnitude of each channel, for smoothing.
        """
        self.check(k)
        factors = signs(k, self.seed) if self.hadamard else np.ones(k, np.float32)
        if self.smooth is not None:
            factors = factors * smoothing(inputs, weights, self.smooth)
        return Basis(factors, min(self.hadamard, k & -k) if self.hadamard else 1)


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


def signs(k: int, seed: int) -> np.ndarray:
    """(k,) float32 of 1 and -1; raw bits of PCG64, which every version of NumPy gives alike."""
    raw = np.atleast_1d(np.random.PCG64([seed, k]).random_raw(-(-k // 64)))
    bits = np.unpackbits(raw.astype("<u8").view(np.uint8))[:k]
    return np.float32(1) - 2 * bits.astype(np.float32)


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
