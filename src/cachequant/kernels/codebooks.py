"""What the codes of a page stand for.

2 to 4 bits: the levels that code a unit Gaussian with the least squared error (Lloyd 1982, Max 1960), symmetric, so a
code is a magnitude and a sign. They are whole numbers times a unit, so that products of codes are exact in integers;
that costs less than 0.1 % of the error. 8 bits: whole numbers up to 127. 16 and 32 bits: the value itself.
"""

import numpy as np

LEVELS = {2: (33, 110), 3: (10, 31, 55, 88), 4: (5, 15, 25, 36, 48, 62, 79, 104)}
UNITS = {2: 0.01372985, 3: 0.02444518, 4: 0.02621985, 8: 1.0}  # what 1 is worth, in standard deviations
BITS = (*LEVELS, 8, 16, 32)
CODED = 8  # most bits of a side that has scales and a rotation
FACTORS = (0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)  # of the root mean square, tried as the scale of a vector


def magnitudes(bits: int) -> np.ndarray:
    """(2^(bits-1),) float32 positive levels, ascending."""
    return (np.array(LEVELS[bits]) * UNITS[bits]).astype(np.float32)


def edges(bits: int) -> np.ndarray:
    """(2^(bits-1) - 1,) float32: magnitudes above edge i get level i + 1 or more."""
    levels = magnitudes(bits)
    return ((levels[1:] + levels[:-1]) / np.float32(2)).astype(np.float32)
