"""Arrays that are views of a memory-mapped file, and the memory that their pages take while they are mapped."""

import mmap

import numpy as np

_PAGE = mmap.PAGESIZE


def release(array: np.ndarray) -> None:
    """Take the pages of a mapped array out of this process's memory; whoever reads them later gets them back.

    What was read of a file stays resident as long as it is mapped, so a model that is packed from a mapped file would
    be in memory twice. Does nothing for an array in memory, and where the system has no such call.
    """
    owner = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED") or not array.size:
        return
    low, high = np.lib.array_utils.byte_bounds(array)
    origin = np.frombuffer(owner, np.uint8).ctypes.data
    first, last = (low - origin) // _PAGE * _PAGE, high - origin
    owner.madvise(mmap.MADV_DONTNEED, first, last - first)
