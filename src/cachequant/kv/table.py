"""The page table that the kernels read: where the exact rows and the codes of each page are."""

from dataclasses import dataclass, field

import numpy as np

_NONE = np.empty(0, np.int64)


@dataclass(eq=False)
class Pages:
    """Addresses of the pages of one sequence, and how they are coded.

    exact : (P,) int64 addresses of exact pages; 0 where only codes are left.
    coded : (P,) int64 addresses of codes; 0 where there are none. Empty for a format without codes.
    coding : the numbers that `kernels.encode` describes; empty for a format without codes.
    """

    exact: np.ndarray = field(default_factory=lambda: _NONE)
    coded: np.ndarray = field(default_factory=lambda: _NONE)
    coding: np.ndarray = field(default_factory=lambda: _NONE)
