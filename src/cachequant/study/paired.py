"""From sums a window to figures with intervals: perplexity and its change, divergence, agreement, logit error.

All differences are paired with float32 on the same tokens. Intervals come from a bootstrap that resamples whole
windows, because tokens of one window are not independent (Efron and Tibshirani 1993, chapter 8).
"""

from collections.abc import Sequence

import numpy as np

from cachequant.study import window_sums
from cachequant.study.timing import LEVEL, RESAMPLES

BASELINE = "fp32"


def summarize(evaluation: dict) -> dict[str, dict]:
    """{scheme: figures} of an evaluation.

    Returns
    -------
    For each scheme `perplexity`, `scored` (tokens) and `windows`; but for fp32 also `delta_percent` {value, low, high},
    `kl` (nats a token), `top1`, `top5` (fractions), `centred_error`, `mean_error`, `max_error` (logits) and
    `intervals` {kl, top1, top5: {low, high}}; where the evaluation has tails also `kl_tail`, the divergence that 99.9 %
    of the tokens do not exceed. With a single window there is no interval: low and high are the value.
    """
    found = evaluation["schemes"]
    base = {key: np.asarray(v) for key, v in found[BASELINE].items()}
    picks = np.random.default_rng(0).integers(0, len(base["nll"]), (RESAMPLES, len(base["nll"])))
    figures = {name: _figures({k: np.asarray(v) for k, v in sums.items()}, base, picks) for name, sums in found.items()}
    for name, tails in evaluation.get("tails", {}).items():
        figures[name]["kl_tail"] = tail_quantile(tails, figures[name]["scored"])
    return figures


def mean_interval(sums: np.ndarray, scored: np.ndarray) -> dict[str, float]:
    """{value, low, high} of a mean a token, from its sum in each window; differences of sums give paired intervals."""
    picks = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    return {"value": float(sums.sum() / scored.sum()), **_interval(_resampled(sums, scored, picks))}


def tail_quantile(tails: Sequence[Sequence[float]], scored: int, above: float = 0.001) -> float | None:
    """The divergence that all but a part `above` of the tokens stay at or below.

    Parameters
    ----------
    tails : the largest divergences of each window, largest first.
    scored : tokens of all windows.

    Returns
    -------
    None where too few divergences were kept to know it: so many large ones in one window that others of it may be
    larger than the answer.
    """
    ordered, rank = sorted((kl for tail in tails for kl in tail), reverse=True), int(above * scored)
    if rank >= len(ordered):
        return None
    hidden = max((tail[-1] for tail in tails if len(tail) == window_sums.TAIL), default=0.0)
    return ordered[rank] if ordered[rank] >= hidden else None


def _figures(sums: dict[str, np.ndarray], base: dict[str, np.ndarray], picks: np.ndarray) -> dict:
    scored = sums["scored"]
    figures = {
        "perplexity": float(np.exp(sums["nll"].sum() / scored.sum())),
        "scored": int(scored.sum()),
        "windows": len(scored),
    }
    if "kl" not in sums:
        return figures
    change = sums["nll"] - base["nll"]
    means = {key: float(sums[key].sum() / scored.sum()) for key in window_sums.COMPARED[1:-1]}
    return figures | {
        "delta_percent": {
            "value": float(100 * np.expm1(change.sum() / scored.sum())),
            **_interval(100 * np.expm1(_resampled(change, scored, picks))),
        },
        **means,
        "max_error": float(sums["max_error"].max()),
        "intervals": {key: _interval(_resampled(sums[key], scored, picks)) for key in ("kl", "top1", "top5")},
    }


def _resampled(sums: np.ndarray, scored: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """Mean a token of each resample of windows."""
    return sums[picks].sum(1) / scored[picks].sum(1)


def _interval(values: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return {"low": float(low), "high": float(high)}
