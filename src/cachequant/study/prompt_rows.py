"""Rows and figures that the chapter on quantized inference makes of `prefill_bench`'s object."""

from itertools import pairwise

import numpy as np


def long(prompts: dict) -> list[dict]:
    """One row a length and arm of the long prompts."""
    return [
        {"tokens": f"{int(n):,}", "arm": arm, **cells} for n, by in prompts["long"].items() for arm, cells in by.items()
    ]


def short(prompts: dict) -> list[dict]:
    """One row a length and arm of the short prompts: milliseconds of one pass and of the tokens one by one."""
    return [
        {"tokens": n, "arm": arm, "once": _ms(cells["seconds"]), "steps": _ms(cells["step_seconds"]),
         "ratio": {k: v for k, v in cells["against_steps"].items() if k != "values"}}
        for n, by in prompts["short"].items()
        for arm, cells in by.items()
    ]  # fmt: skip


def memory(prompts: dict) -> list[dict]:
    """One row a length: peak memory in MB, and KB for each token more than in the row above."""
    sizes = {int(n): found["bytes"] for n, found in prompts["memory"].items()}
    more = {b: (sizes[b] - sizes[a]) / (b - a) / 1e3 for a, b in pairwise(sizes)}
    return [{"tokens": f"{n:,}", "mb": size / 1e6, "kb": more.get(n)} for n, size in sizes.items()]


def line(prompts: dict) -> tuple[float, float]:
    """(bytes a token, largest distance of a peak from a straight line through all, as a share of the largest peak)."""
    n, size = (np.array(x, float) for x in zip(*((m, v["bytes"]) for m, v in prompts["memory"].items()), strict=True))
    slope, floor = np.polyfit(n, size, 1)
    return float(slope), float(np.abs(size - floor - slope * n).max() / size.max())


def ideal(prompts: dict, arm: str) -> float:
    """What an arm would keep of the first prompt's speed at the last, were attention as fast as our float32 product."""
    first, *_, last = prompts["long"]
    own, operations = prompts["long"][first][arm], prompts["operations"]
    seconds = 1 / own["prefill_tok_s"]["median"]
    products = seconds * (1 - own["attention_share"]["median"])
    attention = operations[last]["attention"] / int(last) / prompts["gemm_gops"]["median"] / 1e9
    return seconds / (products + attention)


def slower_than_steps(prompts: dict, arm: str) -> list[str]:
    """Lengths of two tokens or more at which one pass takes longer than the tokens one by one, whole interval."""
    return [n for n, by in prompts["short"].items() if int(n) > 1 and by[arm]["against_steps"]["high"] < 1]


def dearest(prompts: dict, arm: str) -> tuple[float, int]:
    """(decoded tokens that the dearest further token of a short prompt is worth, length of the prompt with it).

    A cliff between two tiles would show as a token that costs more than decoding one.
    """
    first = next(iter(prompts["short"]))
    step = prompts["short"][first][arm]["step_seconds"]["median"] / int(first)
    seconds = {int(n): by[arm]["median"] for n, by in prompts["sweep"].items()}
    return max(((seconds[b] - seconds[a]) / (b - a) / step, b) for a, b in pairwise(seconds))


def _ms(cell: dict) -> dict:
    return {key: 1e3 * value for key, value in cell.items() if key != "values"}
