"""Rows and words that the chapter on the prefix cache makes from its result."""

from cachequant.study.results import Result

CACHED, AGAINST_BOUND = "cache/no-cache", "cache/bound"


def title(result: Result, model: str) -> str:
    """A model's name, marked where its weights are random."""
    return model + " (random weights)" * result.data["random"][model]


def sets(result: Result) -> list[dict]:
    """One row a model and set."""
    return [
        {"model": title(result, model), "set": name, **_summary(bench)}
        for model, benches in result.data["one_shot"].items()
        for name, bench in benches.items()
    ]


def _summary(bench: dict) -> dict:
    rows = bench["requests"]
    return {
        "prompts": len(rows),
        "tokens": sum(row["prompt"] for row in rows),
        "hit": bench["hit_rate"],
        "speed": bench["ratios"][CACHED]["speed"],
        "bound": bench["ratios"][AGAINST_BOUND]["speed"],
        "overhead": bench["arms"]["cache"]["overhead_ms"],
        "rounds": len(bench["arms"]["cache"]["speed"]["values"]),
    }


def turns(result: Result) -> list[dict]:
    """One row a turn over all conversations; those of the only conversation where there is one."""
    bench = result.data["multi_turn"]
    return [
        {
            "turn": row["turn"] + 1,
            "hit": row["hit_rate"],
            "speed": row["ratios"][CACHED]["speed"],
            "bound": row["ratios"][AGAINST_BOUND]["speed"],
            "overhead": row["arms"]["cache"]["overhead_ms"],
        }
        for row in bench["turns"] or bench["requests"]
    ]


def conventions(result: Result) -> dict[str, tuple[dict, dict]]:
    """{set: speed-up by a cache with the last position's logits, with all positions'} of the first model."""
    first = next(iter(result.data["one_shot"].values())) | {"multi_turn": result.data["multi_turn"]}
    return {
        name: (first[name]["ratios"][CACHED]["speed"], bench["ratios"][CACHED]["speed"])
        for name, bench in result.data["all_positions"].items()
        if name in first
    }


def benches(result: Result) -> list[dict]:
    """Every benchmark object of the result."""
    data = result.data
    return [
        *(bench for found in data["one_shot"].values() for bench in found.values()),
        data["multi_turn"],
        *data["all_positions"].values(),
    ]


def storage(result: Result) -> list[dict]:
    """One row a model, length and page format."""
    return [
        {"model": model, "kb": row["bytes_per_token"] / 1e3, "raw": found["token_bytes"] / 1e3, **row}
        for model, found in result.data["storage"].items()
        for row in found["rows"]
    ]


def capacity(result: Result) -> list[dict]:
    """One row a page format: tokens that the budget holds, alone and with a shared first page, and times float32."""
    rows = {(row["kv"], row["shared"]): row["tokens"] for row in result.data["capacity"]["rows"]}
    formats, (alone, shared) = dict.fromkeys(kv for kv, _ in rows), sorted({shared for _, shared in rows})
    return [
        {
            "kv": kv,
            "alone": rows[kv, alone],
            "alone_times": rows[kv, alone] / rows["fp32", alone],
            "shared": rows[kv, shared],
            "shared_times": rows[kv, shared] / rows["fp32", shared],
        }
        for kv in formats
    ]


def stressed(result: Result) -> list[dict]:
    """One row a case: how many of its runs were right, and what one of them said."""
    found: dict[str, list[dict]] = {}
    for row in result.data["stress"]:
        found.setdefault(row["case"], []).append(row)
    return [
        {
            "case": case,
            "outcome": rows[0]["outcome"],
            "right": f"{sum(row['right'] for row in rows)} of {len(rows)}",
            "detail": rows[0]["detail"],
            "seconds": max(row["seconds"] for row in rows),
        }
        for case, rows in found.items()
    ]


def pays(rows: list[dict]) -> str:
    """From which of the measured prefixes on a cache is faster for certain: ``from 16 tokens on``, ``at none of them``.

    Parameters
    ----------
    rows : of `break_even.measure`, by length.
    """
    won = [row["ratios"][CACHED]["speed"]["low"] > 1 for row in rows]
    if not won[-1]:
        return "not even at the longest of them"
    first = len(won) - 1
    while first and won[first - 1]:
        first -= 1
    return f"from {rows[first]['prefix']} tokens on"
