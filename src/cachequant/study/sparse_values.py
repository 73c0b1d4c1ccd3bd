"""Sparse values: pages of values that few weights point at are not read, in NumPy and on real vectors.

A first pass makes all weights, a second one reads the values of the heaviest pages only, until they hold a given mass.
The weights of the query heads that share a page's values are summed: a page is read for all of them or for none.
"""

import numpy as np

from cachequant.kv.formats import PAGE
from cachequant.study.kv_vectors import Vectors

MASSES = (0.9, 0.95, 0.99, 0.999)
QUERIES = 16


def measure(seen: dict[int, Vectors], masses: tuple[float, ...] = MASSES, queries: int = QUERIES) -> list[dict]:
    """What the newest queries of a text lose and spare.

    Parameters
    ----------
    seen : `kv_vectors.capture` of the text.
    masses : that the pages which are read have to hold, of the weights of a key-value head.
    queries : the newest tokens, each as if it were decoded.

    Returns
    -------
    One row a mass: {"mass" asked for, "held" (mean mass of what was read), "read" (share of pages), "bytes" (share of
    all keys and values, keys being read whole), "error" and "error_plain" (relative squared error of the output, with
    the weights scaled to sum 1 again and without), "layers": {"read": one a layer}}.
    """
    found = {mass: {key: [] for key in ("held", "read", "error", "error_plain")} for mass in masses}
    for x in seen.values():
        sums = {mass: {key: [] for key in ("held", "read", "lost", "lost_plain", "energy")} for mass in masses}
        for t in range(len(x.q) - queries, len(x.q)):
            for h in range(x.k.shape[1]):
                _one(x, t, h, sums)
        for mass, columns in sums.items():
            row, energy = found[mass], sum(columns["energy"])
            row["held"].append(np.mean(columns["held"]))
            row["read"].append(np.mean(columns["read"]))
            row["error"].append(sum(columns["lost"]) / energy)
            row["error_plain"].append(sum(columns["lost_plain"]) / energy)
    return [
        {
            "mass": mass,
            **{key: float(np.mean(values)) for key, values in row.items()},
            "bytes": 0.5 + 0.5 * float(np.mean(row["read"])),
            "layers": {"read": [float(r) for r in row["read"]]},
        }
        for mass, row in found.items()
    ]


def _one(x: Vectors, t: int, h: int, sums: dict) -> None:
    """One query position and key-value head under every mass."""
    d, group = x.q.shape[-1], x.q.shape[1] // x.k.shape[1]
    q = x.q[t, h * group : (h + 1) * group].astype(np.float64)
    scores = q @ x.k[: t + 1, h].T.astype(np.float64) * d**-0.5  # (group, t + 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    values = x.v[: t + 1, h].astype(np.float64)
    exact = weights @ values
    starts = np.arange(0, t + 1, PAGE)
    pages = np.add.reduceat(weights.sum(0), starts) / group
    order = np.argsort(-pages, kind="stable")
    reached = np.cumsum(pages[order])
    for mass, columns in sums.items():
        kept = order[: int(np.searchsorted(reached, mass)) + 1]
        rows = np.isin(np.arange(t + 1) // PAGE, kept)
        part = weights[:, rows]
        plain = part @ values[rows]
        scaled = plain / np.maximum(part.sum(-1, keepdims=True), 1e-30)
        columns["held"].append(pages[kept].sum())
        columns["read"].append(len(kept) / len(pages))
        columns["lost"].append(((scaled - exact) ** 2).sum())
        columns["lost_plain"].append(((plain - exact) ** 2).sum())
        columns["energy"].append((exact**2).sum())
