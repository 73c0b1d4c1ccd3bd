"""What storing a page costs when another one has to go for it, against the number of pages in the tree.

Metadata only: a page holds one value a token, as small as pages can be, because the tree never looks inside one.
"""

import time
from collections.abc import Sequence

import numpy as np

from cachequant.errors import InputError
from cachequant.kv.pages import PAGE, PagePool
from cachequant.kv.tree import PageTree
from cachequant.study import timing
from cachequant.study.crew import Progress, silent

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BATCH = 100  # inserts timed together
VOCAB = 1 << 31  # so many that two strings hardly ever begin with the same token


def measure(
    sizes: Sequence[int] = SIZES, inserts: int = 5_000, pages: int = 4, progress: Progress = silent
) -> list[dict]:
    """Fill trees to their capacity, then insert on, all of them in turn.

    Parameters
    ----------
    sizes : pages that a tree may hold.
    inserts : strings stored in each full tree, a multiple of BATCH.
    pages : of a string; nothing is shared between strings.

    Returns
    -------
    [{pages, touched (nodes looked at a string), evicted (pages a string), microseconds {median, low, high, values} (a
    string: match, insert, and evictions, in batches), in_use_kept}] by size; `in_use_kept` says that the pages of a
    string that was held all the time are still there.
    """
    if inserts < BATCH or inserts % BATCH:
        raise InputError(f"inserts {inserts!r} has to be a multiple of {BATCH}")
    if any(size < 4 * pages for size in sizes):
        raise InputError(f"sizes {list(sizes)} have to be at least {4 * pages} pages")
    trees = [_Full(size, pages) for size in sizes]
    for i in range(inserts // BATCH):
        for j in range(len(trees)):
            trees[(i + j) % len(trees)].batch()
        progress(i + 1, inserts // BATCH, "evicting")
    return [tree.row() for tree in trees]


class _Full:
    """A tree at its capacity."""

    def __init__(self, size: int, pages: int):
        self._size, self._pages, self._rng = size, pages, np.random.default_rng(0)
        self._pool = PagePool(1, 1, 1)
        self._tree = PageTree(self._pool, size * self._pool.page_bytes)
        self._held = self._fresh()
        self._kept = self._store(self._held)
        while len(self._tree) < size:
            self._store_and_release(self._fresh())
        self._touched, self._evicted, self._inserts, self._times = self._tree.touched, self._tree.evicted, 0, []

    def _fresh(self) -> list[int]:
        return self._rng.integers(0, VOCAB, self._pages * PAGE).tolist()

    def _store(self, ids: list[int]) -> list[int]:
        """Pages of a string as a session holds them, after they were stored."""
        self._tree.match(ids)
        held = self._tree.path(ids)
        for page in held:
            self._pool.retain(page)
        held += [self._pool.acquire() for _ in range(len(held), self._pages)]
        self._tree.insert(ids, held)
        return held

    def _store_and_release(self, ids: list[int]) -> None:
        for page in reversed(self._store(ids)):
            self._pool.release(page)

    def batch(self) -> None:
        work = [self._fresh() for _ in range(BATCH)]
        begin = time.perf_counter()
        for ids in work:
            self._store_and_release(ids)
        self._times.append((time.perf_counter() - begin) / BATCH)
        self._inserts += BATCH

    def row(self) -> dict:
        return {
            "pages": self._size,
            "touched": (self._tree.touched - self._touched) / self._inserts,
            "evicted": (self._tree.evicted - self._evicted) / self._inserts,
            "microseconds": timing.summary(1e6 * t for t in self._times),
            "in_use_kept": self._tree.path(self._held) == self._kept and len(self._tree) <= self._size,
        }
