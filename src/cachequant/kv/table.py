"""The page table of one sequence: which pages it holds, and the addresses that the kernels read."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cachequant.kv.pages import PAGE, PagePool

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Pages:
    """Addresses of the pages of one sequence, and how they are coded.

    exact : (P,) int64 addresses of exact pages; 0 where only codes are left.
    coded : (P,) int64 addresses of codes; 0 where there are none. Empty for a format without codes.
    coding : the numbers that `kernels.encode` describes; empty for a format without codes.
    """

    exact: np.ndarray
    coded: np.ndarray = field(default_factory=lambda: _NONE)
    coding: np.ndarray = field(default_factory=lambda: _NONE)


class PageTable:
    """Pages that a sequence holds, in order.

    A page that is being filled has exact rows. Where the format has codes, a pass that fills a page writes them as well
    and still reads the exact rows; `settle` keeps the codes alone.
    """

    def __init__(self, pool: PagePool):
        self._pool = pool
        self.pages: list[int] = []
        self._fresh: dict[int, int] = {}  # pages of codes that a pass writes, by index
        self._exact = self._coded = _NONE

    @property
    def nbytes(self) -> int:
        """Bytes of the pages held, slack of the last one included, shared ones counted like others."""
        return sum(self._pool.size(page) for page in self.pages)

    def reserve(self, stored: int, end: int) -> Pages:
        """Room for positions `stored` to `end`, held by nobody else, and where everything before it is.

        Raises
        ------
        BudgetError : there is no room; the table is as it was.
        """
        place, rows = divmod(stored, PAGE)
        if rows and place < len(self.pages):
            page = self.pages[place]
            if self._pool.references(page) > 1 or self._pool.is_coded(page):
                self.pages[place] = self._pool.copy(page, rows)
                self._pool.release(page)
                self._address(place)
        held = len(self.pages)
        try:
            while len(self.pages) * PAGE < end:
                self.pages.append(self._pool.acquire())
            if self._pool.coding:
                for index in range(max(place, self._pool.coding.format.exact_pages), end // PAGE):
                    self._fresh[index] = self._pool.acquire(coded=True)
        except MemoryError:
            self._drop_fresh()
            self.trim(held)
            raise
        self._address(held)
        return self.addresses()

    def addresses(self) -> Pages:
        """Where everything is."""
        if not self._pool.coding:
            return Pages(self._exact)
        coded = self._coded.copy()
        for index, page in self._fresh.items():
            coded[index] = self._pool.address(page)
        return Pages(self._exact, coded, self._pool.coding.numbers)

    def settle(self) -> None:
        """Keep of the pages that the last pass filled their codes alone."""
        for index, page in self._fresh.items():
            self._pool.release(self.pages[index])
            self.pages[index] = page
        first = min(self._fresh, default=len(self.pages))
        self._fresh.clear()
        self._address(first)

    def adopt(self, pages: Sequence[int]) -> None:
        """Hold the given pages instead of the first ones, which hold the same keys and values."""
        changed = None
        for i, page in enumerate(pages):
            if i < len(self.pages) and self.pages[i] == page:
                continue
            self._pool.retain(page)
            if i < len(self.pages):
                self._pool.release(self.pages[i])
            self.pages[i : i + 1] = [page]
            changed = i if changed is None else changed
        if changed is not None:
            self._address(changed)

    def trim(self, pages: int) -> None:
        """Give back all but the first pages, the last one first: a cache must see a page go before those it follows."""
        self._drop_fresh()
        while len(self.pages) > pages:
            self._pool.release(self.pages.pop())
        self._exact, self._coded = self._exact[:pages], self._coded[:pages]

    def drop(self) -> None:
        """Let the pool take everything back with its next call: for finalizers."""
        self._pool.drop([*self._fresh.values(), *reversed(self.pages)])

    def _drop_fresh(self) -> None:
        while self._fresh:
            self._pool.release(self._fresh.popitem()[1])

    def _address(self, first: int) -> None:
        fresh = np.array([self._pool.address(p) for p in self.pages[first:]], np.int64)
        coded = np.array([self._pool.is_coded(p) for p in self.pages[first:]], bool)
        self._exact = np.concatenate([self._exact[:first], np.where(coded, 0, fresh)])
        self._coded = np.concatenate([self._coded[:first], np.where(coded, fresh, 0)])
