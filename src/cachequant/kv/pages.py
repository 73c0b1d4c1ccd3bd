"""The page pool: fixed-size, reference-counted blocks of keys and values (PagedAttention, Kwon et al. 2023, section 4).

A page holds 32 tokens of every layer in the layout that `kernels.attention` reads. Pages of one format come from one
arena of large slabs, so an address never moves while its page is held. Sharing a page is counting one more reference.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import RLock

import numpy as np

from cachequant.errors import CachequantError, InputError

PAGE = 32  # tokens
ALIGN = 64  # bytes
SLAB = 1 << 22  # bytes of a slab, or one page where that is larger


class PageError(CachequantError, ValueError):
    """A page id that is not held: released twice, or never acquired."""


class BudgetError(CachequantError, MemoryError):
    """No page is free and the byte budget does not allow another one."""


@dataclass(frozen=True)
class PageFormat:
    """How the rows of a page are stored.

    layer_bytes : (kv_heads, head_dim) -> bytes of one layer of a page.
    rows : (block, layers, kv_heads, head_dim) -> views of a page's bytes whose second-last axis counts its tokens.
    exact : index of a page in its session -> whether it keeps its rows as they were computed, so that a part of a full
        page can be used on its own.
    """

    name: str
    layer_bytes: Callable[[int, int], int]
    rows: Callable[[np.ndarray, int, int, int], tuple[np.ndarray, ...]]
    exact: Callable[[int], bool]


def _fp32_rows(block: np.ndarray, layers: int, kv_heads: int, head_dim: int) -> tuple[np.ndarray, ...]:
    values = block[: layers * _fp32_bytes(kv_heads, head_dim)].view(np.float32).reshape(layers, 2, -1)
    keys = values[:, 0].reshape(layers, kv_heads, head_dim, PAGE).swapaxes(2, 3)
    return keys, values[:, 1].reshape(layers, kv_heads, PAGE, head_dim)


def _fp32_bytes(kv_heads: int, head_dim: int) -> int:
    return 2 * kv_heads * head_dim * PAGE * 4


FORMATS = {f.name: f for f in (PageFormat("fp32", _fp32_bytes, _fp32_rows, lambda index: True),)}


class Arena:
    """Equally sized blocks cut from aligned slabs, which are allocated as needed and kept."""

    def __init__(self, block_bytes: int):
        self.stride = -(-block_bytes // ALIGN) * ALIGN
        self.nbytes = 0  # of all slabs
        self._slabs: list[np.ndarray] = []
        self._free: list[np.ndarray] = []

    def take(self, blocks_left: int | None) -> np.ndarray:
        """A zeroed block; `blocks_left` bounds how many a new slab may add."""
        if self._free:
            block = self._free.pop()
            block[:] = 0
            return block
        count = max(SLAB // self.stride, 1)
        if blocks_left is not None:
            count = min(count, blocks_left)
        slab = np.zeros(count * self.stride + ALIGN, np.uint8)
        skip = -slab.ctypes.data % ALIGN
        blocks = slab[skip : skip + count * self.stride].reshape(count, self.stride)
        self._slabs.append(slab)
        self.nbytes += slab.nbytes
        self._free.extend(blocks[:0:-1])
        return blocks[0]

    def give(self, block: np.ndarray) -> None:
        self._free.append(block)

    @property
    def free(self) -> int:
        return len(self._free)


class PagePool:
    """Reference-counted pages of one model, safe to use from several threads.

    Parameters
    ----------
    layers, kv_heads, head_dim : the model's shape.
    format : page format.
    budget_bytes : most bytes of pages, held and free together; None for no limit.

    Raises
    ------
    InputError : a size below 1, an unknown format, or a budget smaller than one page.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, format: str = "fp32", budget_bytes: int | None = None
    ):
        for name, value in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim)):
            if value < 1:
                raise InputError(f"{name} has to be at least 1, got {value}")
        if format not in FORMATS:
            raise InputError(f"page format {format!r} is not one of {', '.join(FORMATS)}")
        self._shape = layers, kv_heads, head_dim
        self.payload_bytes = layers * FORMATS[format].layer_bytes(kv_heads, head_dim)  # of a page, without alignment
        self._arena = Arena(self.payload_bytes)
        self._budget = None if budget_bytes is None else budget_bytes // self._arena.stride
        if self._budget == 0:
            raise InputError(f"a budget of {budget_bytes} bytes holds no page; one takes {self._arena.stride}")
        self.format = format
        self.exact = FORMATS[format].exact
        self.lock = RLock()  # also that of the caches over this pool: a shelf changes together with the references
        self._dropped: deque[int] = deque()
        self._shelves: dict[int, OrderedDict[int, None]] = {}
        self._blocks: dict[int, np.ndarray] = {}
        self._references: dict[int, int] = {}
        self._next = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers, alignment included."""
        return self._arena.stride

    @property
    def in_use(self) -> int:
        """Pages with at least one reference."""
        with self.lock:
            self.collect()
            return len(self._blocks)

    @property
    def free(self) -> int | None:
        """Pages that can still be acquired; None without a budget."""
        return None if self._budget is None else self._budget - self.in_use

    @property
    def nbytes(self) -> int:
        """Bytes allocated, free pages and slack of the slabs included."""
        return self._arena.nbytes

    def acquire(self) -> int:
        """Id of a zeroed page with one reference.

        Raises
        ------
        BudgetError : every page of the budget is in use.
        """
        with self.lock:
            self.collect()
            if self.free == 0:
                held = self.in_use * self.page_bytes
                raise BudgetError(f"all {self.in_use} pages of the budget are in use ({held} bytes): release one first")
            block = self._arena.take(None if self.free is None else self.free - self._arena.free)
            page, self._next = self._next, self._next + 1
            self._blocks[page], self._references[page] = block, 1
            return page

    def copy(self, page: int, rows: int) -> int:
        """Id of a new page with the first `rows` tokens of a held one, and nothing of the others."""
        with self.lock:
            self._held(page)
            target = self.acquire()
            for new, old in zip(self._rows(target), self._rows(page), strict=True):
                new[..., :rows, :] = old[..., :rows, :]
            return target

    def read(self, page: int) -> np.ndarray:
        """(payload_bytes,) uint8 view of a held page, valid until it is freed."""
        with self.lock:
            self._held(page)
            return self._blocks[page][: self.payload_bytes]

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
        """Base address of a held page, aligned to 64 bytes, fixed until it is freed.

        Raises
        ------
        PageError : the page is not held.
        """
        with self.lock:
            self._held(page)
            return self._blocks[page].ctypes.data

    def _rows(self, page: int) -> tuple[np.ndarray, ...]:
        return FORMATS[self.format].rows(self._blocks[page], *self._shape)

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
            self._arena.give(self._blocks.pop(page))
        elif self._references[page] == 1 and page in self._shelves:
            self._shelves[page][page] = None

    def _held(self, page: int) -> None:
        if page not in self._references:
            raise PageError(f"page {page!r} is not held: released already, or never acquired")
