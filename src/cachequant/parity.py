"""Parity of the decoder with transformers, in float32 and with the same weights.

Greedy tokens are compared by teacher forcing: transformers reads prompt and continuation in one pass, and its best
token at every position has to be ours, which by induction is what it would generate itself. Only where its own two best
logits are a tie may it differ.
"""

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator

import numpy as np

from cachequant.assets import models
from cachequant.check import Check
from cachequant.checkpoint import checks
from cachequant.decoder.forward import Decoder
from cachequant.decoder.model import Model

LOGIT_LIMIT = 1e-3  # largest difference to transformers' logits, and smallest difference that is not a tie
NEW_TOKENS = 64


def compare(model: Model, asset: models.ModelAsset, ids: list[int], prompts: list[list[int]]) -> Iterator[Check]:
    missing = [p for p in ("torch", "transformers") if importlib.util.find_spec(p) is None]
    if missing:
        for name in ("parity with transformers", "greedy tokens"):
            yield Check(
                name, None, None, None, f"not run: needs {' and '.join(missing)} (pip install 'cachequant[test]')"
            )
        return
    with model.session() as session:
        ours = session.extend(ids, "all")
    continued = [_greedy(model, prompt) for prompt in prompts]  # before torch is imported: one pool of threads
    theirs = _transformers(asset)
    difference = float(np.abs(ours - theirs(ids)).max())
    yield Check("parity with transformers", difference <= LOGIT_LIMIT, difference, LOGIT_LIMIT, f"{len(ids)} tokens")
    gaps = [
        gap for p, new in zip(prompts, continued, strict=True) for gap in _gaps(theirs(p + new)[len(p) - 1 : -1], new)
    ]
    worst = max(gaps)
    note = f"{len(gaps)} tokens; value: how far transformers prefers another one; different: {sum(g > 0 for g in gaps)}"
    yield Check("greedy tokens", worst <= LOGIT_LIMIT, worst, LOGIT_LIMIT, note)


def _greedy(model: Model, prompt: list[int]) -> list[int]:
    """Greedy continuation that does not stop at the end of a text."""
    new: list[int] = []
    with model.session() as session:
        logits = session.extend(prompt)
        for _ in range(min(NEW_TOKENS, model.config.context - len(prompt))):
            new.append(int(np.argmax(logits)))
            logits = session.extend(new[-1:])
    return new


def _gaps(logits: np.ndarray, ids: list[int]) -> list[float]:
    """For (T, V) logits and the T tokens that were chosen: best logit minus the chosen one's."""
    return [float(row.max() - row[i]) for row, i in zip(logits, ids, strict=True)]


def _transformers(asset: models.ModelAsset) -> Callable[[list[int]], np.ndarray]:
    """transformers' logits (T, V) for ids, with the same weights."""
    import torch

    from cachequant.study import torch_engine

    model = torch_engine.build(asset.config, asset.weights, torch.float32)

    def logits(ids: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].numpy()

    return logits


def compare_codes(asset: models.ModelAsset, ids: list[int], prompts: list[list[int]]) -> Iterator[Check]:
    """transformers with the values of a checkpoint's codes, and the codes multiplied with float32 inputs here."""
    plain = dataclasses.replace(asset.scheme, activation=None)
    model = Model(asset, Decoder(asset.config, asset.weights, plain))
    yield from compare(model, checks.values(asset), ids, prompts)
