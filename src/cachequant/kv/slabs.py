"""Memory of pages: blocks of one size, cut from large slabs, whose addresses never change."""

import numpy as np

ALIGN = 64  # bytes
SLAB = 1 << 22  # bytes


class SlabAllocator:
    """Equally sized blocks cut from aligned slabs, which are allocated as needed and kept.

    A block as large as a slab is allocated alone, and given back when it is free.
    """

    def __init__(self, block_bytes: int, slab_bytes: int = SLAB):
        self.stride = -(-block_bytes // ALIGN) * ALIGN
        self._slab_bytes, self._alone = slab_bytes, self.stride >= slab_bytes
        self.nbytes = 0  # of all slabs
        self._slabs: list[np.ndarray] = []
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
        slab = np.zeros(count * self.stride + ALIGN, np.uint8)
        start = slab.ctypes.data
        skip = -start % ALIGN
        blocks = slab[skip : skip + count * self.stride].reshape(count, self.stride)
        self.nbytes += slab.nbytes
        if not self._alone:
            self._slabs.append(slab)
        numbered = [(block, start + skip + i * self.stride) for i, block in enumerate(blocks)]
        self._free.extend(numbered[:0:-1])
        return numbered[0]

    def give(self, block: np.ndarray, address: int) -> None:
        if self._alone:
            self.nbytes -= self.stride + ALIGN
        else:
            self._free.append((block, address))

    @property
    def free(self) -> int:
        return len(self._free)
