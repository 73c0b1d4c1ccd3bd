"""Rows of the chapter on both optimizations at once, from its result."""

from cachequant.study import wording
from cachequant.study.prefix_bench import CACHE, NO_CACHE
from cachequant.study.results import Result

PARTS = ("scheme", "pages", "cache")
STATED = {"cachequant": "this decoder", "float32": "transformers", "float64": "transformers, exact products"}


def speeds(result: Result) -> list[dict]:
    """One row a set, variant and arm: milliseconds to the first token and to the last, decode speed."""
    return [
        {
            "set": name,
            "variant": arm.rpartition(" ")[0],
            "reuse": "yes" if arm.endswith(f" {CACHE}") else "no",
            "first": _milliseconds(found["first_speed"]),
            "decode": found["decode_tok_s"],
            "request": _milliseconds(found["request_speed"]),
        }
        for name, bench in result.data["sets"].items()
        for arm, found in bench["arms"].items()
    ]


def _milliseconds(speed: dict) -> dict[str, float]:
    return {key: 1e3 / speed[other] for key, other in (("median", "median"), ("low", "high"), ("high", "low"))}


def gains(result: Result, metric: str) -> list[dict]:
    """One row a set and variant: what each part gains alone, their product, the joint gain, and the share kept."""
    return [
        {"set": name, "variant": variant, **dict.fromkeys(PARTS), **found[metric]["parts"]}
        | {key: found[metric][key] for key in ("product", "joint", "kept")}
        for name, bench in result.data["sets"].items()
        for variant, found in bench["together"].items()
    ]


def independence(kept: dict) -> str:
    """What the joint gain is, beside the product of the separate ones; `kept` is the ratio of the two.

    >>> independence({"median": 0.8, "low": 0.7, "high": 0.9})
    'less than the product'
    """
    said = {"slower than": "less than the product", "faster than": "more than the product"}
    return said.get(wording.verdict(kept), "the product within the noise")


def reuse_gains(result: Result) -> list[dict]:
    """One row a set and variant: the gain of its cache in first tokens, and the hit rate."""
    return [
        {
            "set": name,
            "variant": variant,
            "hit": hit,
            "gain": bench["ratios"][f"{variant} {CACHE}/{variant} {NO_CACHE}"]["first_speed"],
        }
        for name, bench in result.data["sets"].items()
        for variant, hit in bench["hit_rate"].items()
    ]


def chunks(result: Result) -> list[dict]:
    """One row an engine, scheme and split: logit differences over the prompts, and changes of the greedy token.

    `above` is the number of prompts with a difference above 0.01.
    """
    return [
        {
            "engine": STATED[row.get("products", row["engine"])],
            "scheme": row["scheme"],
            "split": row["split"],
            "differences": row["differences"],
            "median": _plain(row["median"]),
            "largest": _plain(row["largest"]),
            "above": f"{sum(d > 0.01 for d in row['differences'])} of {row['prompts']}",
            "changes": f"{row['greedy_changes']} of {row['prompts']}",
        }
        for row in result.data["chunks"]
    ]


def _plain(difference: float) -> str:
    return f"{difference:.2g}" if difference else "0"


def moved(result: Result) -> list[dict]:
    """One row a scheme: codes and scales that a tiny change of their inputs moves."""
    return [
        {"scheme": name, "codes": 1e6 * found["codes"], "scales": found["scales"], "largest": found["largest"]}
        for name, found in result.data["moved"].items()
    ]
