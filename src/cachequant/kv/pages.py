"""The page pool: fixed-size, reference-counted blocks of keys and values (PagedAttention, Kwon et al. 2023, section 4).

A page holds 32 tokens of every layer in the layout that `kernels.attention` reads: their exact rows, or codes of them.
Pages of one kind come from slabs of their own, so an address never moves while its page is held. Sharing a page
is counting one more reference.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from threading import RLock

import numpy as np

from cachequant.errors import CachequantError, InputError
from cachequant.kernels import slab
from cachequant.kv.coding import Coding
from cachequant.kv.encoded import plain_rows
from cachequant.kv.formats import PAGE, exact_bytes
from cachequant.kv.slabs import SLAB, SlabAllocator

__all__ = ["PAGE", "BudgetError", "PageError", "PagePool", "exact_rows"]


class PageError(CachequantError, ValueError):
    """A page id that is not held: released twice, or never acquired."""


class BudgetError(CachequantError, MemoryError):
    """No page is free and the byte budget does not allow another one."""


class PagePool:
    """Reference-counted pages of one model, safe to use from several threads.

    Parameters
    ----------
    layers, kv_heads, head_dim : the model's shape.
    coding : how full pages are coded; None for float32 pages only.
    budget_bytes : most bytes of pages that are held; None for no limit.
    slab_bytes : of a slab; pages as large as that are allocated one by one, and none is kept that nobody holds.

    Raises
    ------
    InputError : a size below 1, or a budget smaller than one page.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        coding: Coding | None = None,
        budget_bytes: int | None = None,
        slab_bytes: int = SLAB,
    ):
        for name, value in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim)):
            if value < 1:
                raise InputError(f"{name} has to be at least 1, got {value}")
        self._shape = layers, kv_heads, head_dim
        self.coding = coding if coding is not None and coding.format.paged else None
        sizes = np.full(2 * layers * kv_heads, head_dim * PAGE * 4)
        self._rows = SlabAllocator(sizes, slab_bytes, grows=self.coding is None)
        self._codes = SlabAllocator(self.coding.sizes, slab_bytes, grows=True) if self.coding else None
        if budget_bytes is not None and budget_bytes < self.page_bytes:
            raise InputError(f"a budget of {budget_bytes} bytes holds no page; one takes {self.page_bytes}")
        self._budget, self._held_bytes = budget_bytes, 0
        self._coded: set[int] = set()
        self.lock = RLock()  # also that of the caches over this pool: a shelf changes together with the references
        self._dropped: deque[int] = deque()
        self._shelves: dict[int, OrderedDict[int, None]] = {}
        self._places: dict[int, tuple[int, np.ndarray]] = {}  # what the kernels know pages by, and their slabs
        self._references: dict[int, int] = {}
        self._next = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one exact page, all layers."""
        return self._rows.page_bytes

    @property
    def coded_bytes(self) -> int:
        """Bytes of one page of codes, all layers; 0 for a format without codes."""
        return self._codes.page_bytes if self._codes else 0

    def size(self, page: int) -> int:
        """Bytes of a held page."""
        return self.coded_bytes if page in self._coded else self.page_bytes

    def is_coded(self, page: int) -> bool:
        """Whether a held page has codes instead of exact rows."""
        return page in self._coded

    def exact(self, index: int) -> bool:
        """Whether page `index` of a sequence keeps its exact rows when it is full."""
        return self.coding is None or index < self.coding.format.exact_pages

    def divisible(self, index: int) -> bool:
        """Whether a part of page `index` of a sequence can be used on its own when it is full: later pages see of it
        what those who fill it see, exact rows or rounded ones."""
        return self.exact(index) or not self.coding.format.compressed

    @property
    def in_use(self) -> int:
        """Pages with at least one reference."""
        with self.lock:
            self.collect()
            return len(self._places)

    @property
    def free(self) -> int | None:
        """Exact pages that can still be acquired; None without a budget."""
        if self._budget is None:
            return None
        with self.lock:
            self.collect()
            return (self._budget - self._held_bytes) // self.page_bytes

    @property
    def nbytes(self) -> int:
        """Bytes allocated, free pages and slack of the slabs included."""
        return self._rows.nbytes + (self._codes.nbytes if self._codes else 0)

    def acquire(self, coded: bool = False) -> int:
        """Id of a zeroed page with one reference, for exact rows or for codes.

        Raises
        ------
        BudgetError : the rest of the budget is smaller than a page.
        """
        slabs = self._codes if coded else self._rows
        with self.lock:
            self.collect()
            left = None
            if self._budget is not None:
                left = (self._budget - self._held_bytes) // slabs.page_bytes
                if left == 0:
                    held = f"{self.in_use} pages of the budget are in use ({self._held_bytes} bytes)"
                    raise BudgetError(f"all {held}: release one first")
            place = slabs.take(None if left is None else max(left - slabs.free, 1))
            page, self._next = self._next, self._next + 1
            self._places[page], self._references[page] = place, 1
            self._held_bytes += slabs.page_bytes
            if coded:
                self._coded.add(page)
            return page

    def copy(self, page: int, rows: int) -> int:
        """Id of a new exact page with the first `rows` tokens of a held one, and nothing of the others.

        The held one has exact rows, or is of an uncompressed format.
        """
        with self.lock:
            source = self.read(page)
            if page in self._coded:
                kept = plain_rows(source, self.coding.format, *self._shape)
            else:
                kept = exact_rows(source, *self._shape)
            target = self.acquire()
            content = np.zeros(self.page_bytes, np.uint8)
            for new, old in zip(exact_rows(content, *self._shape), kept, strict=True):
                new[..., :rows, :] = old[..., :rows, :]
            self.write(target, content)
            return target

    def read(self, page: int, out: np.ndarray | None = None) -> np.ndarray:
        """(bytes of a page,) uint8, new or `out`: what a held page has, all layers one behind the other."""
        with self.lock:
            return slab.read(self.address(page), self._slabs(page).sizes, out=out)

    def write(self, page: int, content: np.ndarray) -> None:
        """Give a held page the content that `read` returns of another one.

        Raises
        ------
        InputError : content of another size.
        """
        with self.lock:
            number = self.address(page)
            if content.nbytes != self.size(page):
                raise InputError(f"{content.nbytes} bytes for a page of {self.size(page)}")
            slab.write(number, self._slabs(page).sizes, content)

    def layer(self, page: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values (kv_heads, 32, head_dim) of one layer of a held exact page."""
        _, kv_heads, head_dim = self._shape
        sides = 2 * kv_heads
        with self.lock:
            found = slab.read(self.address(page), self._rows.sizes, sides * layer, sides * (layer + 1))
        keys, values = exact_rows(found, 1, kv_heads, head_dim)
        return keys[0], values[0]

    def retain(self, page: int) -> None:
        """Count one more reference.

        Raises
        ------
        PageError : the page is not held.
        """
        with self.lock:
            self.collect()
            self._held(page)
            self._references[page] += 1
            if page in self._shelves:
                self._shelves[page].pop(page, None)

    def release(self, page: int) -> None:
        """Drop one reference; the last one frees the page.

        Raises
        ------
        PageError : the page is not held.
        """
        with self.lock:
            self.collect()
            self._release(page)

    def drop(self, pages: Iterable[int]) -> None:
        """Release pages with the next call of any method: for finalizers, which may run in the middle of one."""
        self._dropped.extend(pages)

    def shelve(self, page: int, shelf: OrderedDict[int, None]) -> None:
        """Count one more reference, that of a cache; while it is the only one, `shelf` holds the page.

        A page whose last other reference goes is put at the end of the shelf, so that its first page is the one that
        has not been used for the longest time.

        Raises
        ------
        PageError : the page is not held, or belongs to a cache already.
        """
        with self.lock:
            self._held(page)
            if page in self._shelves:
                raise PageError(f"page {page} belongs to a cache already")
            self._references[page] += 1
            self._shelves[page] = shelf

    def unshelve(self, page: int) -> None:
        """Drop the reference of a cache.

        Raises
        ------
        PageError : the page belongs to no cache.
        """
        with self.lock:
            if page not in self._shelves:
                raise PageError(f"page {page!r} belongs to no cache")
            self._shelves.pop(page).pop(page, None)
            self._release(page)

    def references(self, page: int) -> int:
        """How many references the page has; 0 if it is free."""
        with self.lock:
            self.collect()
            return self._references.get(page, 0)

    def address(self, page: int) -> int:
        """What the kernels know a held page by (see `kernels.slab`), fixed until it is freed.

        Raises
        ------
        PageError : the page is not held.
        """
        with self.lock:
            self._held(page)
            return self._places[page][0]

    def collect(self) -> None:
        """Release what was dropped; every method does that first."""
        while self._dropped:
            self._release(self._dropped.popleft())

    def _release(self, page: int) -> None:
        self._held(page)
        if self._references[page] == 1 and page in self._shelves:
            raise PageError(f"page {page!r} is held by a cache only: released already")
        self._references[page] -= 1
        if not self._references[page]:
            del self._references[page]
            slabs = self._slabs(page)
            self._coded.discard(page)
            self._held_bytes -= slabs.page_bytes
            slabs.give(*self._places.pop(page))
        elif self._references[page] == 1 and page in self._shelves:
            self._shelves[page][page] = None

    def _slabs(self, page: int) -> SlabAllocator:
        return self._codes if page in self._coded else self._rows

    def _held(self, page: int) -> None:
        if page not in self._references:
            raise PageError(f"page {page!r} is not held: released already, or never acquired")


def exact_rows(block: np.ndarray, layers: int, kv_heads: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values (layers, kv_heads, 32, head_dim) in an exact page, as views."""
    values = block[: exact_bytes(layers, kv_heads, head_dim)].view(np.float32).reshape(layers, 2, -1)
    keys = values[:, 0].reshape(layers, kv_heads, head_dim, PAGE).swapaxes(2, 3)
    return keys, values[:, 1].reshape(layers, kv_heads, PAGE, head_dim)
