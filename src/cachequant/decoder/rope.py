"""Inverse frequencies of rotary position embeddings, with the two scalings that Llama-family models use.

RoPE: Su et al. 2021, arXiv 2104.09864, section 3.2. Linear scaling: Chen et al. 2023, arXiv 2306.15595, section 3.2.
The llama3 rule keeps short wavelengths, stretches long ones and blends between (reference code of Llama 3.1).
"""

import math
from dataclasses import dataclass

import numpy as np

from cachequant.errors import ConfigError


@dataclass(frozen=True)
class LinearScaling:
    """Every frequency divided by `factor`."""

    factor: float

    def __post_init__(self):
        _require_positive(self, "factor")

    def apply(self, frequencies: np.ndarray) -> np.ndarray:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Wavelengths above `original / low` tokens divided by `factor`, below `original / high` kept, blended between."""

    factor: float
    low: float
    high: float
    original: int

    def __post_init__(self):
        _require_positive(self, "factor", "low", "high", "original")
        if self.high <= self.low:
            raise ConfigError(f"rope scaling: high_freq_factor {self.high} must exceed low_freq_factor {self.low}")

    def apply(self, frequencies: np.ndarray) -> np.ndarray:
        turns = self.original * frequencies / (2 * math.pi)  # full turns within the original context
        keep = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return frequencies * (keep + (1 - keep) / self.factor)


RopeScaling = LinearScaling | Llama3Scaling


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> np.ndarray:
    """Radians a token for each rotated pair, float64, shape (head_dim / 2,)."""
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    return frequencies if scaling is None else scaling.apply(frequencies)


def _require_positive(scaling, *fields):
    for field in fields:
        value = getattr(scaling, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigError(f"rope scaling: {field} is {value!r}, it must be a positive number")
