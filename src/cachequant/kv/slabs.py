"""Memory of pages: blocks of one size, cut from slabs, whose addresses never change.

Attention streams through pages, and in pages of 4 kB the processor looks up a translation for every 64 cache lines, so
slabs lie one behind the other in regions that are large enough for huge pages (see `kernels.huge_pages`), unless they
are smaller than one. A part of a region that is not a slab yet is never touched, so it takes no memory.
"""

import numpy as np

from cachequant.kernels.huge_pages import HUGE_PAGE, aligned

ALIGN = 64  # bytes
SLAB = 1 << 22  # bytes
SLABS = 16  # of a region


class SlabAllocator:
    """Equally sized blocks cut from aligned slabs, which are allocated as needed and kept.

    A block as large as a slab is allocated alone, and given back when it is free.
    """

    def __init__(self, block_bytes: int, slab_bytes: int = SLAB):
        self.stride = -(-block_bytes // ALIGN) * ALIGN
        self._slab_bytes, self._alone = slab_bytes, self.stride >= slab_bytes
        self.nbytes = 0  # of all slabs
        self._region = np.empty(0, np.uint8)  # what is left of it
        self._free: list[tuple[np.ndarray, int]] = []

    def take(self, blocks_left: int | None) -> tuple[np.ndarray, int]:
        """A zeroed block and its address; `blocks_left` bounds how many a new slab may add."""
        if self._free:
            block, address = self._free.pop()
            block[:] = 0
            return block, address
        count = max(self._slab_bytes // self.stride, 1)
        if blocks_left is not None:
            count = min(count, blocks_left)
        size = count * self.stride
        slab = aligned(size, ALIGN, np.zeros) if self._alone or self._slab_bytes < HUGE_PAGE else self._cut(size)
        blocks, start = slab.reshape(count, self.stride), slab.ctypes.data
        self.nbytes += size
        numbered = [(block, start + i * self.stride) for i, block in enumerate(blocks)]
        self._free.extend(numbered[:0:-1])
        return numbered[0]

    def _cut(self, size: int) -> np.ndarray:
        if size > self._region.size:
            self._region = aligned(SLABS * max(self._slab_bytes, size), HUGE_PAGE, np.zeros)
        slab, self._region = self._region[:size], self._region[size:]
        return slab

    def give(self, block: np.ndarray, address: int) -> None:
        if self._alone:
            self.nbytes -= self.stride
        else:
            self._free.append((block, address))

    @property
    def free(self) -> int:
        return len(self._free)
