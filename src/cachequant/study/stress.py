"""What a user can get wrong, and what pushes a cache to its limit: right answers instead of crashes.

The cases are those that broke an earlier implementation: an empty prompt, blanks, prompts longer than the context or as
long, no new tokens, many of them, and more prompts than a cache holds; under schemes with and without a cache.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from cachequant.decoder.model import Model
from cachequant.errors import InputError
from cachequant.kv.pages import PAGE
from cachequant.kv.prefix import PrefixCache
from cachequant.study.crew import Progress, silent
from cachequant.study.workloads import prompt_ids, random_ids

REFUSED, GENERATED = "refused", "generated"
SCHEMES = ("fp32", "bfp8", "int8")
NEW, MANY = 10, 200  # tokens
EVICTING, EVICTING_TOKENS, EVICTING_NEW, EVICTING_CAP = 20, 40, 5, 256


@dataclass(frozen=True)
class Case:
    """One request.

    name : of the row.
    prompt : token ids; may be more than a model takes.
    new : tokens asked for.
    expected : ``refused`` with a typed error that names the value, or ``generated``.
    """

    name: str
    prompt: list[int]
    new: int
    expected: str


def cases(model: Model, many: int = MANY) -> list[Case]:
    """The requests for one model; a prompt of blanks is three ids where there is no tokenizer."""
    context, vocab = model.config.context, model.config.vocab
    ordinary = prompt_ids(8, vocab, model.tokenizer)
    return [
        Case("empty prompt", [], NEW, REFUSED),
        Case("three blanks", model.tokenizer.encode("   ") if model.tokenizer else [0] * 3, NEW, GENERATED),
        Case("prompt longer than the context", prompt_ids(context + 76, vocab), NEW, REFUSED),
        Case("prompt that fills the context", prompt_ids(context, vocab), NEW, REFUSED),
        Case("no new tokens", ordinary, 0, REFUSED),
        Case(f"{many} new tokens", ordinary, many, GENERATED),
    ]


def measure(
    model: Model, schemes: Sequence[str] = SCHEMES, many: int = MANY, progress: Progress = silent
) -> list[dict]:
    """Every case under every scheme, with and without a cache, and eviction under pressure with one.

    Returns
    -------
    [{case, scheme, cache, outcome (``refused`` or ``generated``), expected, detail (the error, or how many tokens and
    why they ended), seconds, right}]: 13 rows a scheme. `right` means: the expected outcome, the number of tokens that
    was asked for unless the text ended, with a cache the ids of a run without it, and the budget kept.
    """
    rows = []
    for scheme in schemes:
        under = model if model.scheme.name == scheme else model.with_scheme(scheme)
        todo, alone = cases(under, many), {}
        for case in todo:
            for cached in (False, True):
                row, ids = _run(under, case, cached)
                row["right"] = row["outcome"] == case.expected and ids == alone.setdefault(case.name, ids)
                rows.append(row)
                progress(len(rows), (2 * len(todo) + 1) * len(schemes), f"{scheme}: {case.name}")
        rows.append(_evict(under))
    return rows


def _run(model: Model, case: Case, cached: bool) -> tuple[dict, list[int] | None]:
    """A row without its verdict, and the ids; a request with a cache comes twice, so that the second one is a hit."""
    row = {"case": case.name, "scheme": model.scheme.name, "cache": cached, "expected": case.expected}
    cache = PrefixCache(model) if cached else None
    clock, ids = time.perf_counter(), None
    try:
        for _ in range(1 + cached):
            clock = time.perf_counter()
            made = model.generate(case.prompt, case.new, cache=cache)
        ids, row["outcome"] = made.ids, GENERATED
        row["detail"] = f"{len(made.ids)} tokens, {made.stop_reason.replace('_', ' ')}"
    except InputError as error:
        row["outcome"], row["detail"] = REFUSED, str(error)
    finally:
        row["seconds"] = time.perf_counter() - clock
        if cache is not None:
            cache.close()
    return row, ids


def _evict(model: Model) -> dict:
    """Different prompts, one after the other, in a cache that holds few of them."""
    budget = EVICTING_CAP // PAGE * model.pool.page_bytes
    row = {"case": f"{EVICTING} prompts in {EVICTING_CAP} tokens", "scheme": model.scheme.name, "cache": True}
    seconds, right, most = 0.0, True, 0
    with PrefixCache(model, budget) as cache:
        for i in range(EVICTING):
            prompt = random_ids(EVICTING_TOKENS, model.config.vocab, i)
            clock = time.perf_counter()
            made = model.generate(prompt, EVICTING_NEW, cache=cache)
            seconds += time.perf_counter() - clock
            right &= made.ids == model.generate(prompt, EVICTING_NEW).ids
            most = max(most, cache.statistics.nbytes)
        evicted = cache.statistics.evicted
    detail = f"{evicted} pages evicted, at most {most} of {budget} bytes held"
    right &= most <= budget and evicted > 0
    return row | {
        "expected": GENERATED,
        "outcome": GENERATED,
        "detail": detail,
        "seconds": seconds,
        "right": right,
    }
