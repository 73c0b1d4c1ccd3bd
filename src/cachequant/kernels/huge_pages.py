"""Memory for packed matrices: side by side, on huge pages where the system has them.

A decoded token reads every weight once, and in pages of 4 kB the processor looks up a translation for every 64 cache
lines. NumPy asks for huge pages (transparent huge pages, `Documentation/admin-guide/mm/transhuge.rst` of Linux) for
arrays of 4 MB and more, but most matrices of a small model are smaller, so they share blocks that are large enough.
"""

import threading
from collections.abc import Callable

import numpy as np

HUGE_PAGE, LARGE, BLOCK = 2 << 20, 4 << 20, 32 << 20  # bytes; LARGE is NumPy's limit
_LINE = 64  # the kernels read whole cache lines


class HugePageMemory:
    """Where matrices lie. A block is freed with the last array in it, and what was never written is never taken."""

    def __init__(self):
        self._block, self._used, self._lock = np.empty(0, np.uint8), 0, threading.Lock()

    def room(self, shape: tuple[int, ...], dtype) -> np.ndarray:
        """A new array from the start of a cache line, with anything in it; a large one from that of a huge page."""
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        return (aligned(size, HUGE_PAGE) if size >= LARGE else self._cut(size)).view(dtype).reshape(shape)

    def _cut(self, size: int) -> np.ndarray:
        with self._lock:
            if self._used + size > self._block.size:
                self._block, self._used = aligned(BLOCK, HUGE_PAGE), 0
            start, self._used = self._used, self._used + -(-size // _LINE) * _LINE
            return self._block[start : start + size]


def aligned(size: int, align: int, make: Callable = np.empty) -> np.ndarray:
    """(size,) bytes of `make`, from a multiple of `align`."""
    raw = make(size + align, np.uint8)
    return raw[-raw.ctypes.data % align :][:size]
