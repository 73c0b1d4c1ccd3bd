"""Kernels that are compiled once, also when several threads come first at the same time."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
from numba import njit

from cachequant.kernels.lazy import VECTOR, compile_once


def test_threads_that_come_first_together_get_the_same_code():
    kernel, start = njit(lambda x: None), Barrier(8)

    def first(_):
        start.wait()
        return compile_once(kernel, VECTOR)

    with ThreadPoolExecutor(8) as pool:
        entries = list(pool.map(first, range(8)))
    assert len(kernel.overloads) == 1
    for entry in entries:
        assert entry(np.zeros(3, np.float32)) is None
