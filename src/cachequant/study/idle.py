"""A model that computes nothing, for what depends only on which pages are held: its pages are real, their rows zero."""

from dataclasses import replace

import numpy as np

from cachequant import schemes
from cachequant.assets.store import ModelAsset
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.model import Model
from cachequant.kv.coding import coding


class IdleDecoder:
    """Takes the place of `Decoder`; hidden states and logits are zeros."""

    def __init__(self, config: DecoderConfig):
        self.config, self.scheme = config, schemes.get("fp32")

    def forward(self, ids: np.ndarray, pages, start: int) -> np.ndarray:
        return np.zeros((len(ids), 1), np.float32)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        return np.zeros((len(hidden), self.config.vocab), np.float32)


def idle(asset: ModelAsset, kv: str = "fp32", small: bool = False) -> Model:
    """A model of an asset's shape that computes nothing.

    Parameters
    ----------
    kv : page format.
    small : pages of a few bytes, where only their number counts.
    """
    c = asset.config
    if small:
        asset = replace(asset, config=replace(c, width=2, layers=1, heads=1, kv_heads=1, head_dim=2))
        c = asset.config
    return Model(asset, IdleDecoder(c), coding(kv, c.layers, c.kv_heads, c.head_dim))
