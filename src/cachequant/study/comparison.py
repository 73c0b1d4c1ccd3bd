"""The one object that every benchmark prints: arms, ratios, what is missing, and where it comes from."""

from collections.abc import Mapping, Sequence
from itertools import permutations

from cachequant.study import timing

Values = Mapping[str, Mapping[str, Sequence[float]]]


def assemble(values: Values, compared: Sequence[str], missing: Mapping[str, str], provenance: Mapping, **more) -> dict:
    """Medians, intervals and paired ratios of every ordered pair of arms.

    Parameters
    ----------
    values : {arm: {metric: value of each round}}; index r is round r in every arm.
    compared : metrics that get ratios.
    missing : {arm: reason}; an arm without any value is missing too.
    provenance : what to say about machine, model and method; gets the reasons as `missing`.
    **more : further keys of the object.

    Returns
    -------
    {"arms": {arm: {metric: {median, low, high, values}}}, "ratios": {"arm/baseline": {metric: {median, low, high}}},
    "missing": [arm], "provenance": {...}}; a ratio is the first arm's value divided by the second's.
    """
    reasons = dict(missing)
    ran = {}
    for arm, metrics in values.items():
        kept = {metric: list(v) for metric, v in metrics.items() if len(v)}
        if kept:
            ran[arm] = kept
        else:
            reasons.setdefault(arm, "no repetition was finished")
    ratios = {
        f"{a}/{b}": {m: timing.ratio(ran[a][m], ran[b][m]) for m in compared if m in ran[a] and m in ran[b]}
        for a, b in permutations(ran, 2)
    }
    return {
        "arms": {arm: {metric: timing.summary(v) for metric, v in metrics.items()} for arm, metrics in ran.items()},
        "ratios": {pair: metrics for pair, metrics in ratios.items() if metrics},
        "missing": [arm for arm in reasons if arm not in ran],
        **more,
        "provenance": {**provenance, "missing": reasons},
    }
