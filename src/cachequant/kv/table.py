"""The page table of one sequence: which pages it holds, and the addresses that the kernels read."""

from dataclasses import dataclass, field

import numpy as np

from cachequant.kv.formats import PAGE
from cachequant.kv.pages import PagePool

_NONE = np.empty(0, np.int64)


@dataclass(eq=False)
class Pages:
    """Addresses of the pages of one sequence, and how they are coded.

    exact : (P,) int64 addresses of exact pages; 0 where only codes are left.
    coded : (P,) int64 addresses of codes; 0 where there are none. Empty for a format without codes.
    coding : the numbers that `kernels.encode` describes; empty for a format without codes.
    """

    exact: np.ndarray = field(default_factory=lambda: _NONE)
    coded: np.ndarray = field(default_factory=lambda: _NONE)
    coding: np.ndarray = field(default_factory=lambda: _NONE)


class PageTable:
    """Pages that a sequence holds.

    Parameters
    ----------
    pool : of exact pages.
    codes : of pages of codes, for a format that has them. A full page is kept as codes, but for the leading ones that
        stay exact; its exact rows are needed until the pass that filled it is over.
    """

    def __init__(self, pool: PagePool, codes: PagePool | None = None):
        self._pool, self._codes = pool, codes
        self._exact: list[int | None] = []  # None where only codes are left
        self._coded: list[int | None] = []  # None where there are no codes

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that are held, slack of the last one included."""
        held = [(self._pool, self._exact), (self._codes, self._coded)]
        return sum(pool.page_bytes * sum(p is not None for p in pages) for pool, pages in held if pool is not None)

    def reserve(self, position: int, tokens: int) -> Pages:
        """Room for `tokens` more after `position`, and where it is. Raises BudgetError where there is none."""
        end = position + tokens
        while len(self._exact) * PAGE < end:
            self._exact.append(self._pool.acquire())
            self._coded.append(None)
        if self._codes is None:
            return Pages(_addresses(self._pool, self._exact))
        coding = self._codes.codes
        for index in range(max(position // PAGE, coding.format.exact_pages), end // PAGE):
            if self._coded[index] is None:
                self._coded[index] = self._codes.acquire()
        return Pages(_addresses(self._pool, self._exact), _addresses(self._codes, self._coded), coding.numbers)

    def drop_exact(self) -> None:
        """Give back the exact rows of pages that are coded."""
        for index, page in enumerate(self._exact):
            if page is not None and self._coded[index] is not None:
                self._pool.release(page)
                self._exact[index] = None

    def close(self) -> None:
        """Give all pages back."""
        for pool, pages in ((self._pool, self._exact), (self._codes, self._coded)):
            while pages:
                if (page := pages.pop()) is not None:
                    pool.release(page)


def _addresses(pool: PagePool, pages: list[int | None]) -> np.ndarray:
    return np.array([0 if p is None else pool.address(p) for p in pages], np.int64)
