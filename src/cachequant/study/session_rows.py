"""Rows of the chapter on sessions, from its result."""

from cachequant.study.results import Result

PLACES = {"end": "at the end", "boundary": "between two pages", "inside": "inside a page"}


def scaled(summary: dict, factor: float) -> dict:
    """{median, low, high} of a summary in another unit."""
    return {key: factor * summary[key] for key in ("median", "low", "high")}


def forks(result: Result) -> list[dict]:
    """One row a length, format and place of the cut: milliseconds, tokens computed again and MB copied."""
    return [
        {
            "tokens": int(tokens),
            "format": name,
            "place": PLACES[place],
            "recomputed": found["recomputed"],
            "copied": found["copied_bytes"] / 1e6,
            **{m: scaled(found[f"{m}_seconds"], 1e3) for m in ("fork", "rewind", "first", "step")},
        }
        for tokens, formats in result.data["costs"].items()
        for name, costs in formats.items()
        for place, found in costs["forks"].items()
    ]


def snapshots(result: Result) -> list[dict]:
    """One row a length and format: MB of the file, how much more than the pages, KB a token, and seconds."""
    return [
        {
            "tokens": int(tokens),
            "format": name,
            "mb": costs["bytes"]["file"] / 1e6,
            "over_pages": costs["bytes"]["file"] / costs["bytes"]["pages"],
            "kb_token": costs["bytes"]["file"] / int(tokens) / 1e3,
            "times": costs["snapshot"]["against_prefill"],
            **{m: costs["snapshot"][f"{m}_seconds"] for m in ("save", "load", "next", "prefill")},
        }
        for tokens, formats in result.data["costs"].items()
        for name, costs in formats.items()
    ]


def branches(result: Result) -> list[dict]:
    """One row a format and number of branches: MB of all of them with shared pages, and without."""
    return [
        {
            "format": name,
            "branches": int(count),
            "shared": found["shared_bytes"] / 1e6,
            "separate": found["separate_bytes"] / 1e6,
            "times": found["separate_bytes"] / found["shared_bytes"],
        }
        for name, counts in result.data["branches"].items()
        for count, found in counts.items()
    ]


def replays(result: Result, sampling: str) -> list[dict]:
    """One row a maker of answers: {"maker", "tokens", replayer: how many tokens are the same, or ``all``}."""
    return [
        {"maker": maker, "tokens": found["tokens"]}
        | {name: "all" if first is None else f"first {first}" for name, first in found["first"].items()}
        for maker, found in result.data["replays"][sampling].items()
    ]


def bits_differ(result: Result) -> int:
    """How many branches and restored sessions gave another hidden state than one prefill of the same tokens."""
    costs = [c for formats in result.data["costs"].values() for c in formats.values()]
    same = [f["same"] for c in costs for f in [*c["forks"].values(), c["snapshot"]]]
    return same.count(False)
