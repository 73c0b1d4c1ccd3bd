"""The page pool: fixed-size, reference-counted blocks of keys and values (PagedAttention, Kwon et al. 2023, section 4).

A page holds 32 tokens of every layer in the layout that `kernels.attention` reads. Pages of one format come from one
arena of large slabs, so an address never moves while its page is held. Sharing a page is counting one more reference.
"""

from threading import Lock

import numpy as np

from cachequant.errors import CachequantError, InputError
from cachequant.kv.coding import Coding
from cachequant.kv.formats import PAGE, exact_bytes

__all__ = ["PAGE", "BudgetError", "PageError", "PagePool"]
ALIGN = 64  # bytes
SLAB = 1 << 22  # bytes of a slab, or one page where that is larger


class PageError(CachequantError, ValueError):
    """A page id that is not held: released twice, or never acquired."""


class BudgetError(CachequantError, MemoryError):
    """No page is free and the byte budget does not allow another one."""


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
    codes : how pages are coded, for a pool of pages of codes; None for exact float32 pages.
    budget_bytes : most bytes of pages, held and free together; None for no limit.

    Raises
    ------
    InputError : a size below 1, or a budget smaller than one page.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        codes: Coding | None = None,
        budget_bytes: int | None = None,
    ):
        for name, value in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim)):
            if value < 1:
                raise InputError(f"{name} has to be at least 1, got {value}")
        self.codes = codes
        self._arena = Arena(exact_bytes(layers, kv_heads, head_dim) if codes is None else codes.coded_bytes)
        self._budget = None if budget_bytes is None else budget_bytes // self._arena.stride
        if self._budget == 0:
            raise InputError(f"a budget of {budget_bytes} bytes holds no page; one takes {self._arena.stride}")
        self._lock = Lock()
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
        with self._lock:
            if self.free == 0:
                held = self.in_use * self.page_bytes
                raise BudgetError(f"all {self.in_use} pages of the budget are in use ({held} bytes): release one first")
            block = self._arena.take(None if self.free is None else self.free - self._arena.free)
            page, self._next = self._next, self._next + 1
            self._blocks[page], self._references[page] = block, 1
            return page

    def retain(self, page: int) -> None:
        """Count one more reference.

        Raises
        ------
        PageError : the page is not held.
        """
        with self._lock:
            self._held(page)
            self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop one reference; the last one frees the page.

        Raises
        ------
        PageError : the page is not held.
        """
        with self._lock:
            self._held(page)
            self._references[page] -= 1
            if not self._references[page]:
                del self._references[page]
                self._arena.give(self._blocks.pop(page))

    def references(self, page: int) -> int:
        """How many references the page has; 0 if it is free."""
        return self._references.get(page, 0)

    def address(self, page: int) -> int:
        """Base address of a held page, aligned to 64 bytes, fixed until it is freed.

        Raises
        ------
        PageError : the page is not held.
        """
        with self._lock:
            self._held(page)
            return self._blocks[page].ctypes.data

    def _held(self, page: int) -> None:
        if page not in self._references:
            raise PageError(f"page {page!r} is not held: released already, or never acquired")
