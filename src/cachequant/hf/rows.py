"""The pages of one sequence of a batch: codes of full pages, and exact rows of the pages that a query may still need.

Exact are the leading pages of the format, the page that is being filled, and the pages of the newest 64 tokens, which
have codes as well: a crop of up to 64 tokens gets back the exact page of its last token.
"""

import numpy as np

from cachequant.errors import InputError
from cachequant.kv.formats import PAGE
from cachequant.kv.pages import PagePool

NEWEST = 64  # tokens


class Row:
    """Pages that a sequence holds, by index; they may be shared with other rows, and are copied when one is written to.

    exact, coded : (P,) int64 addresses, 0 where there is no such page.
    """

    def __init__(self, pool: PagePool):
        self._pool = pool
        self._exact: dict[int, int] = {}
        self._coded: dict[int, int] = {}
        self._address()

    @property
    def pages(self) -> list[int]:
        """Ids of the pages held."""
        return [*self._exact.values(), *self._coded.values()]

    def reserve(self, stored: int, end: int) -> None:
        """Room for positions `stored` to `end`; full pages that no query and no crop of 64 needs keep codes alone."""
        pool, (place, rows) = self._pool, divmod(stored, PAGE)
        if not rows or place not in self._exact or pool.references(self._exact[place]) > 1 or end >= (place + 1) * PAGE:
            self._own(place, rows)
            self._thin(place, end)
            for index in range(place, -(-end // PAGE)):
                if index not in self._exact and self._stays(index, end):
                    self._exact[index] = pool.acquire()
            if pool.coding:
                for index in range(max(place, pool.coding.format.exact_pages), end // PAGE):
                    if index not in self._coded:
                        self._coded[index] = pool.acquire(coded=True)
            self._address()

    def _own(self, place: int, rows: int) -> None:
        """Nobody else may see what is written to the page of the next token."""
        page = self._exact.get(place)
        if rows and self._pool.references(page) > 1:
            self._exact[place] = self._pool.copy(page, rows)
            self._pool.release(page)

    def _thin(self, place: int, end: int) -> None:
        for index in [i for i in self._exact if i < place and i in self._coded and not self._stays(i, end)]:
            self._pool.release(self._exact.pop(index))

    def _stays(self, index: int, end: int) -> bool:
        """Whether a page keeps exact rows when `end` tokens are stored."""
        return self._pool.exact(index) or index >= (end - NEWEST) // PAGE

    def check_crop(self, to: int) -> None:
        """Raise InputError if the first `to` tokens cannot be had without the others."""
        place, rows = divmod(to, PAGE)
        if rows and place not in self._exact and self._pool.coding.format.compressed:
            raise InputError(
                f"a crop to {to} tokens cuts page {place}, of which only codes are left: allowed are crops of up to "
                f"{NEWEST} tokens from the most that were stored, or to {place * PAGE} tokens, the end of a page"
            )

    def crop(self, to: int) -> None:
        """Keep the first `to` tokens."""
        place, rows = divmod(to, PAGE)
        if rows and place not in self._exact:
            self._exact[place] = self._pool.copy(self._coded[place], rows)
        for pages, kept in ((self._exact, place + (rows > 0)), (self._coded, place)):
            for index in [i for i in pages if i >= kept]:
                self._pool.release(pages.pop(index))
        self._address()

    def rows(self, index: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Exact keys and values (kv_heads, 32, d) of one page and layer."""
        return self._pool.layer(self._exact[index], layer)

    def fork(self) -> "Row":
        """Another row with the same pages."""
        other = Row(self._pool)
        for page in self.pages:
            self._pool.retain(page)
        other._exact, other._coded = dict(self._exact), dict(self._coded)
        other._address()
        return other

    def __del__(self):
        self._pool.drop(self.pages)  # may run in the middle of a method of the pool

    def _address(self) -> None:
        count = max([*self._exact, *self._coded], default=-1) + 1
        self.exact, self.coded = np.zeros(count, np.int64), np.zeros(count if self._pool.coding else 0, np.int64)
        for target, pages in ((self.exact, self._exact), (self.coded, self._coded)):
            for index, page in pages.items():
                target[index] = self._pool.address(page)
