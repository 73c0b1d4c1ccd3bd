"""How the tree of pages grows, request by request, for drawings: read from a real cache, computed by nobody."""

from collections.abc import Sequence
from dataclasses import dataclass

from cachequant.assets.store import ModelAsset
from cachequant.kv.pages import PAGE
from cachequant.kv.prefix import PrefixCache
from cachequant.study.idle import idle

OPENING = (
    "The cat sat on the mat. It had been raining since the early morning, and the kitchen smelled of wet wool and of "
    "the bread that was cooling by the window. "
)
MIDDLE = "Somebody had left the back door open, so the cat watched the garden and waited for the rain to stop. "
STORIES = (
    OPENING + MIDDLE + "Nothing moved.",
    OPENING + MIDDLE + "Nothing moved. Then a blackbird came.",
    OPENING + "Nobody had fed it yet, and so it complained to the old dog, who slept under the table all day long.",
    "The cat sat on the roof and sang.",
)


@dataclass(frozen=True)
class Step:
    """The tree after one request.

    prompt, matched : tokens of the request, and those that were found.
    inserted, evicted : pages.
    nodes : [{page, parent (page or None), tokens, text, new}] from the root down.
    gone : those of the step before that are no longer there: a longer page begins with their tokens, or they were
        evicted.
    """

    prompt: int
    matched: int
    inserted: int
    evicted: int
    nodes: list[dict]
    gone: list[dict]


def grow(asset: ModelAsset, prompts: Sequence[str] = STORIES, budget_pages: int = 4) -> list[Step]:
    """Requests one after the other.

    Parameters
    ----------
    asset : with a tokenizer; no weights are read.
    budget_pages : pages that the cache may hold.
    """
    model = idle(asset)
    steps, before = [], []
    with PrefixCache(model, budget_pages * model.pool.page_bytes) as cache:
        for prompt in prompts:
            ids = model.encode(prompt)
            session, request = cache.session(ids)
            with session:
                session.extend(ids[session.position :], "none")
                cache.insert(session, request)
            nodes = _nodes(cache, model, {node["page"] for node in before})
            here = {node["page"] for node in nodes}
            gone = [node for node in before if node["page"] not in here]
            steps.append(Step(request.prompt, request.matched, request.inserted, request.evicted, nodes, gone))
            before = nodes
    return steps


def _nodes(cache: PrefixCache, model, before: set[int]) -> list[dict]:
    found = sorted(cache.walk())
    pages = dict(found)
    nodes = []
    for ids, page in found:
        start = (len(ids) - 1) // PAGE * PAGE
        nodes.append(
            {
                "page": page,
                "parent": pages.get(ids[:start]),
                "tokens": len(ids) - start,
                "text": model.tokenizer.decode(ids[start:]),
                "new": page not in before,
            }
        )
    return nodes
