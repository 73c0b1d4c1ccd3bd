"""What a cached token takes, by page format and length, and how many tokens a budget holds.

Counted on real pages in the pool and the cache, without computing what is in them.
"""

import tracemalloc
from collections.abc import Sequence

import numpy as np

from cachequant.assets.store import ModelAsset
from cachequant.errors import InputError
from cachequant.kv.pages import PAGE, PagePool
from cachequant.kv.prefix import PrefixCache
from cachequant.kv.tree import PageTree
from cachequant.study.idle import idle

FLOAT = 4


def token_bytes(asset: ModelAsset) -> int:
    """Bytes of one token's keys and values in float32, nothing else counted."""
    return 2 * asset.config.layers * asset.config.kv_heads * asset.config.head_dim * FLOAT


def by_length(asset: ModelAsset, formats: Sequence[str], lengths: Sequence[int]) -> list[dict]:
    """What sequences take.

    Parameters
    ----------
    formats, lengths : page formats, and tokens; lengths beyond the model's context are left out.

    Returns
    -------
    [{kv, tokens, bytes (all pages, slack counted), bytes_per_token, ratio (float32 rows of these tokens over the
    bytes), page_ratio (float32 pages over the bytes), full_page_ratio (a float32 page over one that is coded)}].
    """
    raw, rows = token_bytes(asset), []
    lengths = [n for n in lengths if n <= asset.config.context]
    whole = {n: -(-n // PAGE) * PAGE * raw for n in lengths}
    for kv in formats:
        model = idle(asset, kv)
        for n in lengths:
            with model.session() as session:
                session.extend(np.zeros(n, np.int64), "none")
                held = session.nbytes
            rows.append(
                {
                    "kv": kv,
                    "tokens": n,
                    "bytes": held,
                    "bytes_per_token": held / n,
                    "ratio": n * raw / held,
                    "page_ratio": whole[n] / held,
                    "full_page_ratio": PAGE * raw / (model.pool.coded_bytes or model.pool.page_bytes),
                }
            )
    return rows


def tree_bytes(pages: int = 2_000) -> float:
    """Bytes of the tree's own objects a page: node, ids, places in its tables."""
    pool, rng = PagePool(1, 1, 1), np.random.default_rng(0)
    held = [pool.acquire() for _ in range(pages)]
    strings = [rng.integers(0, 1 << 31, 4 * PAGE).tolist() for _ in range(pages // 4)]
    tracemalloc.start()
    try:
        tree = PageTree(pool, None)
        before = tracemalloc.get_traced_memory()[0]
        for i, ids in enumerate(strings):
            tree.insert(ids, held[4 * i : 4 * i + 4])
        return (tracemalloc.get_traced_memory()[0] - before) / len(tree)
    finally:
        tracemalloc.stop()


def capacity(asset: ModelAsset, kv: str, budget_bytes: int, length: int = 512, shared: int = PAGE) -> int:
    """Distinct tokens in a cache that has had more conversations than it holds.

    Parameters
    ----------
    length : tokens of a conversation, a multiple of a page.
    shared : tokens at their beginning that are the same in all.
    """
    if length % PAGE or shared % PAGE or shared >= length:
        raise InputError(f"{length} and {shared} tokens have to be whole pages of {PAGE}, and something not shared")
    model, rng = idle(asset, kv), np.random.default_rng(0)
    beginning = rng.integers(0, asset.config.vocab, shared).tolist()
    with PrefixCache(model, budget_bytes) as cache:
        for _ in range(2 + 2 * budget_bytes * 10 // (token_bytes(asset) * length)):
            ids = beginning + rng.integers(0, asset.config.vocab, length - shared).tolist()
            session, _ = cache.session(ids)
            with session:
                session.extend(ids[session.position :], "none")
                cache.insert(session)
        return sum((len(ids) - 1) % PAGE + 1 for ids, _ in cache.walk())
