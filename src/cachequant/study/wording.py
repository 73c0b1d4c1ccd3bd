"""Words of the book that depend on what was measured, so that a sentence stays true on another machine.

A ratio is {median, low, high} of "first / second" in a metric where larger is better; its interval decides the words.
"""

from collections.abc import Callable, Iterable

DIGITS = 2  # of ratios in sentences


def verdict(ratio: dict) -> str:
    """How the first compares with the second, to be followed by the second's name.

    >>> verdict({"median": 1.8, "low": 1.7, "high": 1.9})
    'faster than'
    >>> verdict({"median": 1.005, "low": 1.001, "high": 1.009})  # 1.00 [1.00, 1.01] times
    'within the noise of'
    """
    low, high = _shown(ratio)
    if low > 1:
        return "faster than"
    return "slower than" if high < 1 else "within the noise of"


def _shown(ratio: dict) -> tuple[float, float]:
    """The interval as `times` writes it, so that no sentence says more than its figures."""
    return round(ratio["low"], DIGITS), round(ratio["high"], DIGITS)


def times(ratio: dict, digits: int = DIGITS) -> str:
    """The ratio with its interval, as in ``1.80 [1.70, 1.90] times``."""
    median, low, high = (f"{ratio[k]:.{digits}f}" for k in ("median", "low", "high"))
    return f"{median} [{low}, {high}] times"


def listed(names: Iterable[str], none: str = "none") -> str:
    """``a, b and c``; the word for an empty list where there are none.

    >>> listed(["int8", "bfp8", "w8"])
    'int8, bfp8 and w8'
    """
    *rest, last = names = list(names) or [none]
    return f"{', '.join(rest)} and {last}" if len(names) > 1 else last


def best(cells: dict[str, dict], ratio: Callable[[str, str], dict] | None = None) -> str:
    """The name with the highest median, and those that cannot be told apart from it.

    Parameters
    ----------
    cells : {name: {"median", "low", "high"}}.
    ratio : (a, b) -> paired ratio of a to b, which decides; without it, whether the intervals overlap.

    >>> best({"a": {"median": 3, "low": 2, "high": 4}, "b": {"median": 2, "low": 1, "high": 3}})
    'a (within its noise: b)'
    """
    top = max(cells, key=lambda name: cells[name]["median"])

    def close(name: str) -> bool:
        return cells[name]["high"] >= cells[top]["low"] if ratio is None else _shown(ratio(top, name))[0] <= 1

    others = [name for name in cells if name != top and close(name)]
    return f"{top} (within its noise: {listed(others)})" if others else top


def wins(ratios: dict[int, dict]) -> str:
    """At which prompt lengths something is faster: ``at every length``, ``at 8 and 32 tokens``, ``at none``.

    Parameters
    ----------
    ratios : {prompt length: ratio to the baseline}.
    """
    won = [n for n, r in sorted(ratios.items()) if _shown(r)[0] > 1]
    if len(won) == len(ratios):
        return "at every length"
    return f"at {listed(map(str, won))} tokens" if won else "at none"
