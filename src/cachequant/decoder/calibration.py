"""What a scheme has to know about activations before its weights are packed: the largest input of every channel."""

import numpy as np

from cachequant.assets import texts
from cachequant.assets.models import ModelAsset
from cachequant.decoder import packed
from cachequant.decoder.forward import Decoder
from cachequant.decoder.taps import tapped
from cachequant.errors import InputError
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session
from cachequant.schemes import Scheme

TEXT, TOKENS = "enwiki-calibration", 512  # a text that is never scored


def build(asset: ModelAsset, scheme: Scheme, shared: Decoder | None = None, keep: bool = False) -> Decoder:
    """The decoder of a model under a scheme, calibrated first if the scheme needs that.

    shared : a decoder of the same weights, whose parts are taken where they are the same.
    keep : take the packed matrices that an earlier process left in the cache folder, or else leave them there. Those of
        a quantized checkpoint are not kept: what it holds are the codes already, and packing only moves them.
    """
    if asset.scheme is not None and scheme != asset.scheme:
        raise InputError(
            f"scheme {scheme.name!r}: {asset.name} is a checkpoint quantized as {asset.scheme.name!r}; allowed is "
            "that, other schemes need the float32 model"
        )
    kept = None
    if keep and asset.scheme is None and packed.budget():
        kept = packed.PackedStore(asset, scheme, _ids(asset) if scheme.calibrated else None)
        if (found := kept.open()) is not None:
            return Decoder(asset.config, asset.weights, scheme, packed=found)
    largest = None
    if scheme.calibrated:
        plain = (
            shared if shared and shared.scheme.weight is None else Decoder(asset.config, asset.weights, Scheme("fp32"))
        )
        largest = largest_inputs(plain, _ids(asset))
    decoder = Decoder(asset.config, asset.weights, scheme, shared, largest)
    if kept is not None:
        kept.keep(decoder.linears)
    return decoder


def largest_inputs(decoder: Decoder, ids: list[int]) -> dict[tuple[int, str], np.ndarray]:
    """{(layer, site): (K,) float32}: largest magnitude of every channel of the inputs over a text."""
    largest = {}

    def tap(layer: int, site: str, x: np.ndarray) -> np.ndarray:
        top = np.abs(x).max(0)
        largest[layer, site] = np.maximum(largest.get((layer, site), top), top)
        return x

    c = decoder.config
    with Session(tapped(decoder, tap), PagePool(c.layers, c.kv_heads, c.head_dim)) as session:
        session.extend(ids, logits="none")
    return largest


def _ids(asset: ModelAsset) -> list[int]:
    """Token ids of the calibration text; seeded ones for a model without a tokenizer."""
    tokens = min(TOKENS, asset.config.context)
    if asset.tokenizer is None:
        return np.random.default_rng(0).integers(0, asset.config.vocab, tokens).tolist()
    return asset.tokenizer.encode(texts.resolve(TEXT).text[: 16 * tokens])[:tokens]
