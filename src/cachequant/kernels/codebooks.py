"""What the codes of a page stand for.

2 to 4 bits: the levels that code a unit Gaussian with the least squared error (Lloyd 1982, Max 1960), symmetric, so a
code is a magnitude and a sign. 8 bits: whole numbers up to 127. 16 and 32 bits: the value itself.
"""

import numpy as np

MAGNITUDES = {
    2: (0.45278, 1.51042),
    3: (0.24509, 0.75601, 1.34391, 2.15195),
    4: (0.1284, 0.38805, 0.65676, 0.94234, 1.25623, 1.61805, 2.06902, 2.73259),
}
BITS = (*MAGNITUDES, 8, 16, 32)
CODED = 8  # most bits of a side that has scales and a rotation
FACTORS = (0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)  # of the root mean square, tried as the scale of a vector


def magnitudes(bits: int) -> np.ndarray:
    """(2^(bits-1),) float32 positive levels, ascending."""
    return np.array(MAGNITUDES[bits], np.float32)


def edges(bits: int) -> np.ndarray:
    """(2^(bits-1) - 1,) float32: magnitudes above edge i get level i + 1 or more."""
    levels = magnitudes(bits)
    return ((levels[1:] + levels[:-1]) / np.float32(2)).astype(np.float32)
