"""Look at, or change, what flows into the linear layers of a decoder, without touching the decoder.

A tap is a function of (layer, site, x): it sees the (T, K) input of one group of matrices and returns what goes on into
them. Sites are the four inputs of a decoder block: `qkv` (normed, into query, key and value), `output` (attention's
result), `up` (normed, into gate and up, or GPT-2's first matrix) and `down` (the activated hidden units).
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from cachequant.decoder.forward import Decoder
from cachequant.decoder.linear import PackedLinear
from cachequant.decoder.model import Model
from cachequant.quantize import dequantize, quantize
from cachequant.schemes import Quantizer

SITES = ("qkv", "output", "up", "down")
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


def tapped(model: Model, tap: Tap, name: str) -> Model:
    """The same model with a tap before every linear layer of its blocks; weights are shared.

    `name` becomes the scheme's, so that results and fingerprints do not mix with the plain model's.
    """
    decoder: Decoder = copy(model._decoder)
    decoder.scheme = replace(decoder.scheme, name=name)
    decoder.layers = [
        replace(layer, **{site: _Tapped(getattr(layer, site), i, site, tap) for site in SITES})
        for i, layer in enumerate(decoder.layers)
    ]
    return Model(model._asset, decoder)


def fake_quantized(quantizer: Quantizer, sites: tuple[str, ...] = SITES) -> Tap:
    """A tap that rounds inputs to `quantizer` at the given sites: the effect of a format on activations alone."""

    def tap(layer: int, site: str, x: np.ndarray) -> np.ndarray:
        return dequantize(quantize(x, quantizer)) if site in sites else x

    return tap


def capture(model: Model, ids: list[int]) -> dict[tuple[int, str], np.ndarray]:
    """Inputs of every linear layer for one text: {(layer, site): (T, K) float32}."""
    seen = {}

    def tap(layer: int, site: str, x: np.ndarray) -> np.ndarray:
        seen.setdefault((layer, site), []).append(x.copy())
        return x

    with tapped(model, tap, "captured").session() as session:
        session.extend(ids, logits="none")
    return {key: np.concatenate(parts) for key, parts in seen.items()}
