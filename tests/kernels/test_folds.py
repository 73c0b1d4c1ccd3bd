"""Folds of a row into a number, against NumPy, at lengths with and without whole vectors."""

import numpy as np
import pytest
from numba import njit

from cachequant.kernels import folds

LENGTHS = [1, 7, 8, 31, 32, 33, 64, 100, 257]
_sum = njit(lambda x: folds.row_sum(x.ctypes.data, x.size))
_max = njit(lambda x: folds.row_max(x.ctypes.data, x.size))
_magnitude = njit(lambda x: folds.row_magnitude(x.ctypes.data, x.size))
_dot = njit(lambda x, y: folds.row_dot(x.ctypes.data, y.ctypes.data, x.size))


@pytest.mark.parametrize("length", LENGTHS)
def test_folds_agree_with_numpy(length, rng):
    x, y = (rng.standard_normal(length).astype(np.float32) for _ in range(2))
    bound = 1e-6 * length
    assert abs(_sum(x) - x.astype(float).sum()) <= bound * np.abs(x).max()
    assert abs(_dot(x, y) - x.astype(float) @ y.astype(float)) <= bound * np.abs(x).max() * np.abs(y).max()
    assert _max(x) == x.max()
    assert _magnitude(x) == np.abs(x).max()


@pytest.mark.parametrize("at", [0, 5, 40])
def test_largest_values_count_wherever_they_are(at):
    x = np.zeros(41, np.float32)
    x[at] = -3e38
    assert _magnitude(x) == np.float32(3e38)
    assert _max(x) == 0
    assert _magnitude(np.zeros(41, np.float32)) == 0
