"""Memory for packed matrices: side by side, on huge pages where the system has them.

A decoded token reads every weight once, and in pages of 4 kB the processor looks up a translation for every 64 cache
lines. NumPy asks for huge pages (transparent huge pages, `Documentation/admin-guide/mm/transhuge.rst` of Linux) for
arrays of 4 MB and more, but most matrices of a small model are smaller, so they share blocks that are large enough.
"""

import numpy as np

from cachequant.assets.mapped import release

HUGE_PAGE, LARGE, BLOCK = 2 << 20, 4 << 20, 32 << 20  # bytes; LARGE is NumPy's limit
_LINE = 64  # the kernels read whole cache lines


class HugePageMemory:
    """Where the matrices of one model lie. A block is freed with the last array in it."""

    def __init__(self):
        self._block, self._used = np.empty(0, np.uint8), 0

    def take(self, array: np.ndarray | None, mapped: bool = False) -> np.ndarray | None:
        """The array as a copy in a block; one of LARGE bytes or more as it is, unless it is mapped. None stays None.

        mapped : the array is a view of a file; its pages are given back as it is copied.
        """
        if array is None or (array.nbytes >= LARGE and not mapped):
            return array
        source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        target = self._room(source.size)
        for start in range(0, source.size, LARGE):
            piece = source[start : start + LARGE]
            target[start : start + LARGE] = piece
            release(piece)
        return target.view(array.dtype).reshape(array.shape)

    def _room(self, size: int) -> np.ndarray:
        if size >= LARGE:
            return _block(size)
        if self._used + size > self._block.size:
            self._block, self._used = _block(BLOCK), 0
        room = self._block[self._used : self._used + size]
        self._used += -(-size // _LINE) * _LINE
        return room


def _block(size: int) -> np.ndarray:
    """(size,) bytes from a huge page's start; memory that is never written is never taken."""
    raw = np.empty(size + HUGE_PAGE, np.uint8)
    return raw[-raw.ctypes.data % HUGE_PAGE :][:size]
