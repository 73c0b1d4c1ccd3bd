"""Arrays over memory that is known by its address."""

import numpy as np
from numba import carray, njit

from cachequant.kernels.ir import pointer


@njit(inline="always")
def floats(address, count):
    """(count,) float32 at an address; whoever owns the memory has to keep it."""
    return carray(pointer(address), (count,), np.float32)


@njit(inline="always")
def numbers(address, count):
    """(count,) int64 at an address."""
    return carray(pointer(address), (count,), np.int64)


@njit(cache=True)
def keep(array):
    """Call it behind the last use of an array's address: Numba frees an array after the last line that names it."""
