"""Memory of pages: cut from slabs, which never move.

Attention streams through pages, and in pages of 4 kB the processor looks up a translation for every 64 cache lines, so
slabs lie one behind the other in regions that are large enough for huge pages (see `kernels.huge_pages`), unless they
are smaller than one. A part of a region that is not a slab yet is never touched, so it takes no memory.
"""

import numpy as np

from cachequant.kernels import slab
from cachequant.kernels.huge_pages import HUGE_PAGE, aligned

SLAB = 1 << 22  # bytes
SLABS = 16  # of a region


class SlabAllocator:
    """Pages of one kind, in slabs that are allocated as needed and kept.

    A page as large as a slab is allocated alone, and given back when it is free.

    Parameters
    ----------
    sizes : (S,) int64 bytes of the sides of a page, each a multiple of 64.
    slab_bytes : of a slab that holds more than one page, if it does not grow.
    grows : a slab may be as large as all before it together, for there will be many: up to the 8 pages that are read in
        one run (see `kernels.slab`).
    """

    def __init__(self, sizes: np.ndarray, slab_bytes: int = SLAB, grows: bool = False):
        self.sizes, self.page_bytes = sizes, int(sizes.sum())
        self._slab_bytes, self._alone, self._grows = slab_bytes, self.page_bytes >= slab_bytes, grows
        self.nbytes = 0  # of all slabs
        self._region = np.empty(0, np.uint8)  # what is left of it
        self._free: list[tuple[int, np.ndarray]] = []

    def take(self, pages_left: int | None) -> tuple[int, np.ndarray]:
        """The number of a zeroed page, and the slab, which has to be kept as long; `pages_left` bounds a new slab."""
        if self._free:
            taken = self._free.pop()
            slab.clear(taken[0], self.sizes)
            return taken
        pages = self._pages_of_a_slab(pages_left)
        size = pages * self.page_bytes
        memory = aligned(size, slab.ALIGN, np.zeros) if self._alone or self._slab_bytes < HUGE_PAGE else self._cut(size)
        self.nbytes += size
        numbered = [(slab.number(memory.ctypes.data, i, pages), memory) for i in range(pages)]
        self._free.extend(numbered[:0:-1])
        return numbered[0]

    def _pages_of_a_slab(self, pages_left: int | None) -> int:
        if self._alone:
            return 1
        most = max(self._slab_bytes, self.nbytes if self._grows else 0) // self.page_bytes
        most = min(most, slab.INTERLEAVED, most if pages_left is None else pages_left)
        return 1 << (most.bit_length() - 1)

    def _cut(self, size: int) -> np.ndarray:
        if size > self._region.size:
            self._region = aligned(SLABS * max(self._slab_bytes, size), HUGE_PAGE, np.zeros)
        memory, self._region = self._region[:size], self._region[size:]
        return memory

    def give(self, number: int, memory: np.ndarray) -> None:
        if self._alone:
            self.nbytes -= self.page_bytes
        else:
            self._free.append((number, memory))

    @property
    def free(self) -> int:
        return len(self._free)
