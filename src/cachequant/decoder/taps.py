"""Look at, or change, what flows into the linear layers of a decoder, without touching the decoder.

A tap is a function of (layer, site, x): it sees the (T, K) input of one group of matrices and returns what goes on into
them. Sites are the four inputs of a decoder block: `qkv` (normed, into query, key and value), `output` (attention's
result), `up` (normed, into gate and up, or GPT-2's first matrix) and `down` (the activated hidden units).
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from cachequant.decoder.forward import SITES, Decoder
from cachequant.decoder.linear import PackedLinear

Tap = Callable[[int, str, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class _Tapped:
    """A linear layer behind a tap."""

    inner: PackedLinear
    layer: int
    site: str
    tap: Tap

    def __call__(self, x: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
        return self.inner(self.tap(self.layer, self.site, x), residual=residual)

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes


def tapped(decoder: Decoder, tap: Tap) -> Decoder:
    """The same decoder with a tap before every linear layer of its blocks; weights are shared."""
    decoder = copy(decoder)
    decoder.layers = [
        replace(layer, **{site: _Tapped(getattr(layer, site), i, site, tap) for site in SITES})
        for i, layer in enumerate(decoder.layers)
    ]
    return decoder
