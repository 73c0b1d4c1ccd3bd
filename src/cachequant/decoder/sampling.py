"""From logits to the next token: greedy, or temperature -> top-k -> top-p (Holtzman et al. 2020) -> draw."""

from dataclasses import dataclass

import numpy as np

from cachequant.errors import InputError, NumericsError


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen.

    Parameters
    ----------
    temperature : 0 takes the largest logit (ties go to the lower id); above 0 divides the logits by it.
    top_k : keep the k largest logits, and those equal to the k-th; None keeps all.
    top_p : keep the smallest set of most likely tokens whose probability reaches `top_p`; None keeps all.
    seed : of the generator; the same seed draws the same tokens.

    Raises
    ------
    InputError : a value out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self):
        if not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature {self.temperature!r} has to be a finite number >= 0")
        if self.top_k is not None and not (isinstance(self.top_k, int) and self.top_k >= 1):
            raise InputError(f"top_k {self.top_k!r} has to be a whole number >= 1, or None")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p {self.top_p!r} has to be in (0, 1], or None")

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def choose(self, logits: np.ndarray, generator: np.random.Generator) -> int:
        """The next token id for (V,) logits. Raises NumericsError on NaN or Inf."""
        check_finite(logits)
        if self.temperature == 0:
            return int(np.argmax(logits))
        cumulative = np.cumsum(probabilities(logits, self.temperature, self.top_k, self.top_p))
        return int(np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"))


def check_finite(logits: np.ndarray) -> None:
    if not np.isfinite(logits).all():
        bad = int(np.flatnonzero(~np.isfinite(logits))[0])
        raise NumericsError(f"logit of token {bad} is {logits[bad]}; all have to be finite")


def probabilities(logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray:
    """(V,) float64 probabilities after the filters; the same values as transformers' logits processors give."""
    scores = logits.astype(np.float64) / temperature
    if top_k is not None and top_k < len(scores):
        scores = np.where(scores < np.partition(scores, -top_k)[-top_k], -np.inf, scores)
    if top_p is not None and top_p < 1:
        order = np.argsort(scores, kind="stable")
        unlikely = np.cumsum(_softmax(scores[order])) <= 1 - top_p
        unlikely[-1] = False
        scores[order[unlikely]] = -np.inf
    return _softmax(scores)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()
