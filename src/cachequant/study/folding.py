"""A model with the gain of its final norm folded into an untied head: the same function with another head matrix.

RMS norm multiplies channel c by a gain g(c) before the head W, so (x g) W' = x (W diag(g))'. Some checkpoints were
rounded before they were published, and a head that lies on the grid of a format returns from it unchanged, which says
nothing about other models; the folded head lies on no grid.
"""

import dataclasses
import hashlib

import numpy as np

from cachequant import schemes
from cachequant.assets.store import ModelAsset
from cachequant.decoder.calibration import build
from cachequant.decoder.model import Model
from cachequant.decoder.weights import Weights, tensor_shapes
from cachequant.errors import InputError


def fold(asset: ModelAsset) -> ModelAsset:
    """The model with gains of one and a head of its own; the embedding stays as it is.

    Raises
    ------
    InputError
        A quantized model, or a final norm with a bias, which only a head with a bias could take.
    """
    asset.require_float32()
    if "final_norm.bias" in asset.weights:
        raise InputError(f"{asset.name} has a bias in its final norm, which a head cannot take; allowed: RMS norm")
    config = dataclasses.replace(asset.config, tied=False)
    gain = np.asarray(asset.weights["final_norm.weight"])
    head = asset.weights["embed.weight" if asset.config.tied else "head.weight"]
    changed = {"head.weight": head * gain, "final_norm.weight": np.ones_like(gain)}
    tensors = {name: changed[name] if name in changed else asset.weights[name] for name in tensor_shapes(config)}
    sha256 = hashlib.sha256(f"final norm folded into the head of {asset.sha256}".encode()).hexdigest()
    weights = Weights(tensors, sha256)
    name = f"{asset.name} (norm folded)"
    return dataclasses.replace(asset, name=name, config=config, weights=weights, sha256=sha256)


def folded(asset: ModelAsset) -> Model:
    """The folded model in float32, ready to run."""
    made = fold(asset)
    return Model(made, build(made, schemes.get("fp32")))


def difference(first: Model, second: Model, ids: list[int]) -> float:
    """Largest difference of the logits of two models over token ids, in units of the largest logit."""
    sides = []
    for model in (first, second):
        with model.session() as session:
            sides.append(session.extend(ids, "all"))
    return float(np.abs(sides[0] - sides[1]).max() / np.abs(sides[0]).max())
