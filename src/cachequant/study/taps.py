"""Taps of whole models: rounding inputs without the kernels, and keeping them for the chapters on formats."""

from dataclasses import replace

import numpy as np

from cachequant.decoder import taps
from cachequant.decoder.forward import SITES
from cachequant.decoder.model import Model
from cachequant.decoder.taps import Tap
from cachequant.quantize import dequantize, quantize
from cachequant.schemes import Quantizer


def tapped(model: Model, tap: Tap, name: str) -> Model:
    """The same model with a tap before every linear layer of its blocks; weights are shared.

    `name` becomes the scheme's, so that results and fingerprints do not mix with the plain model's.
    """
    decoder = taps.tapped(model._decoder, tap)
    decoder.scheme = replace(decoder.scheme, name=name)
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
