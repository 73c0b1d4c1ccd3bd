"""Round trips for `cachequant verify`: a model written and read again has to compute the same bits."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cachequant import quantize
from cachequant.assets.gguf import BLOCK, open_gguf
from cachequant.assets.store import ModelAsset
from cachequant.checkpoint.read import read_checkpoint
from cachequant.checkpoint.write import write_checkpoint
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.forward import Decoder
from cachequant.decoder.weights import Weights, tensor_shapes
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session
from cachequant.quantize import Quantized
from cachequant.schemes import Scheme


def shortened(asset: ModelAsset, layers: int) -> ModelAsset:
    """The first layers of a model, as a model."""
    config = dataclasses.replace(asset.config, layers=layers)
    weights = {name: asset.weights[name] for name in tensor_shapes(config)}
    return dataclasses.replace(asset, config=config, weights=Weights(weights, asset.sha256))


def values(asset: ModelAsset) -> ModelAsset:
    """A checkpoint as the float32 model that its codes stand for."""
    found = {
        name: quantize.dequantize(w) if isinstance(w, Quantized) else w for name, w in asset.weights.items()
    }  # fmt: skip
    return dataclasses.replace(asset, weights=Weights(found, asset.sha256), scheme=None)


def checkpoint_round_trip(asset: ModelAsset, scheme: Scheme, ids: list[int]) -> int:
    """How many logits of a float32 model under a scheme differ in a bit when it is stored as a checkpoint first."""

    def stored(folder: Path):
        return read_checkpoint(write_checkpoint(asset, folder / "checkpoint", scheme)).weights

    return _differing(asset, scheme, ids, stored)


def gguf_round_trip(asset: ModelAsset, scheme: Scheme, ids: list[int]) -> int:
    """The same for a GGUF file with codes."""
    from cachequant.assets.gguf_write import export_gguf

    def stored(folder: Path):
        export_gguf(asset, folder / "model.gguf", scheme)
        source = open_gguf(folder / "model.gguf")
        names = list(tensor_shapes(source.config))
        codes = {name: q for name in names if (q := source.read_codes(name)) is not None}
        return Weights({name: source.read(name) for name in names}, source.sha256, codes=codes)

    return _differing(asset, scheme, ids, stored)


def fits_gguf(config: DecoderConfig) -> bool:
    """Whether all rows are whole blocks."""
    return not any(width % BLOCK for width in (config.width, config.attention_width, config.ffn))


def _differing(asset: ModelAsset, scheme: Scheme, ids: list[int], stored: Callable[[Path], Weights]) -> int:
    with TemporaryDirectory(prefix="cachequant-") as folder:
        sides = [_logits(asset.config, weights, scheme, ids) for weights in (asset.weights, stored(Path(folder)))]
    return int(np.count_nonzero(sides[0].view(np.uint32) != sides[1].view(np.uint32)))


def _logits(config: DecoderConfig, weights: Weights, scheme: Scheme, ids: list[int]) -> np.ndarray:
    decoder = Decoder(config, weights, scheme)
    with Session(decoder, PagePool(config.layers, config.kv_heads, config.head_dim)) as session:
        return session.extend(ids, "all")
