"""A long mixed stream of requests under a budget: how much of the prompts is found again.

Users come back to conversations that grow, some of them often and most of them rarely; applications share system
prompts; and requests that nobody repeats push older pages out.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from cachequant.assets.store import ModelAsset
from cachequant.errors import InputError
from cachequant.kv.prefix import PrefixCache
from cachequant.study.conversations import Turn
from cachequant.study.crew import Progress, silent
from cachequant.study.idle import idle

USERS, SYSTEMS, SYSTEM_TOKENS, TURNS = 32, 4, 276, 8
LONGEST = SYSTEM_TOKENS + TURNS * (59 + 119)  # tokens of a conversation at most
SKEW = 1.1  # of Zipf's law over users
SINGLE = 0.15  # requests that nobody repeats
UNLIMITED = None


def stream(vocab: int, requests: int, seed: int = 0) -> Iterator[Turn]:
    """Requests of seeded ids: prompts, and answers of 40 to 119 tokens that belong to the next prompt of their user."""
    rng = np.random.default_rng(seed)
    fresh = lambda low, high: rng.integers(0, vocab, rng.integers(low, high)).tolist()  # noqa: E731
    systems = [fresh(SYSTEM_TOKENS, SYSTEM_TOKENS + 1) for _ in range(SYSTEMS)]
    share = 1 / np.arange(1, USERS + 1) ** SKEW
    talks: dict[int, list[int]] = {}
    turns = dict.fromkeys(range(USERS), 0)
    for _ in range(requests):
        if rng.random() < SINGLE:
            yield Turn(fresh(100, 301), fresh(40, 120))
            continue
        user = int(rng.choice(USERS, p=share / share.sum()))
        if turns[user] % TURNS == 0:
            talks[user] = systems[user % SYSTEMS]
        turns[user] += 1
        prompt, answer = talks[user] + fresh(12, 60), fresh(40, 120)
        talks[user] = prompt + answer
        yield Turn(prompt, answer)


def measure(
    asset: ModelAsset,
    formats: Sequence[str],
    budgets_mb: Sequence[int],
    requests: int = 400,
    seed: int = 0,
    progress: Progress = silent,
) -> dict:
    """The same stream for every format and budget.

    Returns
    -------
    {"rows": [{kv, budget_mb, hit_rate (of all prompts' tokens), evicted (pages), pages}], "unlimited": hit rate without
    a budget, "tokens": of all prompts, "requests"}.

    Raises
    ------
    InputError : a context that does not hold the conversations.
    """
    if asset.config.context < LONGEST:
        raise InputError(
            f"the stream needs a context of {LONGEST} tokens; that of {asset.name} is {asset.config.context}"
        )
    budgets = [mb for mb in budgets_mb if mb * 1_000_000 >= idle(asset).pool.page_bytes]
    rows, total = [], len(formats) * len(budgets)
    for kv in formats:
        for mb in budgets:
            found = _served(asset, kv, mb * 1_000_000, requests, seed)
            rows.append({"kv": kv, "budget_mb": mb, **found})
            progress(len(rows), total, f"{kv} in {mb} MB")
    without = _served(asset, "fp32", UNLIMITED, requests, seed)
    tokens = sum(len(turn.prompt) for turn in stream(asset.config.vocab, requests, seed))
    return {"rows": rows, "unlimited": without["hit_rate"], "tokens": tokens, "requests": requests}


def _served(asset: ModelAsset, kv: str, budget: int | None, requests: int, seed: int) -> dict:
    model = idle(asset, kv, small=budget is UNLIMITED)
    with PrefixCache(model, budget) as cache:
        for turn in stream(asset.config.vocab, requests, seed):
            session, request = cache.session(turn.prompt)
            with session:
                session.extend(turn.prompt[session.position :] + turn.answer[:-1], "none")
                cache.insert(session, request)
        found = cache.statistics
        return {"hit_rate": found.hit_rate, "evicted": found.evicted, "pages": found.pages}
