"""Keys, values and queries of a real text as attention gets them, and what a rotation does to their distribution."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from cachequant.kv.basis import Basis, plain
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session

SIDES = ("keys", "values")
SKIPPED = 32  # tokens at the start that no format codes
RANGE, BINS = 8.0, 160  # of the histograms, in units of a vector's root mean square


@dataclass(frozen=True, eq=False)
class Vectors:
    """What one layer's attention got: queries (T, heads, d), keys and values (T, kv_heads, d), positions rotated in."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    def side(self, name: str) -> np.ndarray:
        """The keys or the values."""
        return self.k if name == "keys" else self.v


def capture(model, ids: Sequence[int], layers: Collection[int] | None = None) -> dict[int, Vectors]:
    """{layer: vectors} of one text in a float32 model, of all layers or of those asked for."""
    c, seen = model.config, {}

    def see(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        if layers is None or layer in layers:
            seen.setdefault(layer, []).append((q.copy(), k.copy(), v.copy()))

    with Session(model._decoder.watched(see), PagePool(c.layers, c.kv_heads, c.head_dim)) as session:
        session.extend(ids, logits="none")
    joined = {layer: map(np.concatenate, zip(*parts, strict=True)) for layer, parts in sorted(seen.items())}
    return {layer: Vectors(*three) for layer, three in joined.items()}


def into(basis: Basis, layer: int, side: str, x: np.ndarray) -> np.ndarray:
    """(T, kv_heads, d) vectors in the basis in which they are coded."""
    entry, d = basis.array[layer, :, SIDES.index(side)], x.shape[-1]
    return np.einsum("thd,hde->the", x - entry[:, 0], entry[:, 1 : 1 + d])


def out_of(basis: Basis, layer: int, side: str, y: np.ndarray) -> np.ndarray:
    """The inverse of `into`."""
    entry, d = basis.array[layer, :, SIDES.index(side)], y.shape[-1]
    back = entry[:, 1 + d :]
    return np.einsum("the,hed->thd", y, np.swapaxes(back, -1, -2) if side == "keys" else back) + entry[:, 0]


def shapes(seen: dict[int, Vectors], fitted: Basis) -> dict:
    """What the numbers inside a vector look like as they are, rotated, and in the calibrated basis.

    Every vector is divided by its root mean square; of a Gaussian the largest of 64 is then about 2.5 and the kurtosis
    is 3.

    Returns
    -------
    {"edges" of the bins, "sides": {side: {stage: {"density", "kurtosis", "crest" (mean of largest magnitude over root
    mean square), "layers": {"kurtosis", "crest": one a layer}}}}, "loudest": the head of keys with the largest mean
    crest, with "layer", "head" and for each stage the root mean square of its "channels"}.
    """
    d = next(iter(seen.values())).k.shape[-1]
    heads = next(iter(seen.values())).k.shape[1]
    rotated = plain(max(seen) + 1, heads, d)
    stages = {
        "raw": lambda layer, side, x: x,
        "rotated": lambda layer, side, x: into(rotated, layer, side, x),
        "calibrated": lambda layer, side, x: into(fitted, layer, side, x),
    }
    edges = np.linspace(-RANGE, RANGE, BINS + 1)
    sides, loudest = {}, (0.0, 0, 0)
    for side in SIDES:
        sides[side] = {}
        for stage, change in stages.items():
            counts, kurtosis, crest = np.zeros(BINS), [], []
            for layer, vectors in seen.items():
                x = change(layer, side, vectors.side(side)[SKIPPED:])
                u = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-30)
                counts += np.histogram(u, edges)[0]
                kurtosis.append(float((u**4).mean()))
                top = np.abs(u).max(-1).mean(0)  # (heads,)
                crest.append(float(top.mean()))
                if (side, stage) == ("keys", "raw"):
                    loudest = max(loudest, (float(top.max()), layer, int(top.argmax())))
            density = counts / (counts.sum() * (edges[1] - edges[0]))
            sides[side][stage] = {
                "density": density, "kurtosis": float(np.mean(kurtosis)), "crest": float(np.mean(crest)),
                "layers": {"kurtosis": kurtosis, "crest": crest},
            }  # fmt: skip
    _, layer, head = loudest
    x = seen[layer].k[SKIPPED:]
    channels = {stage: np.sqrt((change(layer, "keys", x)[:, head] ** 2).mean(0)) for stage, change in stages.items()}
    return {"edges": edges, "sides": sides, "loudest": {"layer": layer, "head": head, "channels": channels}}
