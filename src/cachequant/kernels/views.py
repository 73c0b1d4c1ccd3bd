"""Arrays over memory that is known by its address."""

import numpy as np
from numba import carray, njit

from cachequant.kernels.ir import pointer


@njit(inline="always")
def floats(address, count):
    """(count,) float32 at an address; whoever owns the memory has to keep it."""
    return carray(pointer(address), (count,), np.float32)
