"""From which length of a shared prefix on a cache pays: one request that stores it, one that finds it."""

from collections.abc import Sequence

from cachequant.decoder.model import Model
from cachequant.study import prefix_bench
from cachequant.study.conversations import Piece, PromptSet
from cachequant.study.crew import Progress, silent
from cachequant.study.workloads import LONG

REST = 8  # tokens behind the prefix


def measure(
    model: Model, lengths: Sequence[int], rest: int = REST, repeats: int = 5, progress: Progress = silent
) -> list[dict]:
    """Requests of a prefix and `rest` other tokens.

    Parameters
    ----------
    lengths : tokens of the prefix, from 0.

    Returns
    -------
    [{prefix, prompt, matched, arms, ratios}] of the second request, as the rows of `prefix_bench.measure`.
    """
    rows = []
    for i, length in enumerate(lengths):
        prefix = [Piece(LONG.text, length)] if length else []
        ends = ("The first of the two requests, which stores.", "Another one, which should find what is there.")
        chosen = PromptSet(f"prefix-{length}", tuple((*prefix, Piece(end, rest)) for end in ends))
        found = prefix_bench.measure({"": model}, chosen, repeats=repeats)["requests"][1]
        rows.append({"prefix": length, **{key: found[key] for key in ("prompt", "matched", "arms", "ratios")}})
        progress(i + 1, len(lengths), f"prefix of {length}")
    return rows
