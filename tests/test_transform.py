"""Changes of basis: products stay what they are, outliers spread, and signs never change."""

import numpy as np
import pytest

from cachequant import transform
from cachequant.errors import InputError
from cachequant.schemes import Transform
from cachequant.transform import Basis, basis


@pytest.mark.parametrize(("k", "block"), [(64, 64), (576, 64), (1536, 512), (1536, 256), (40, 8), (7, 1)])
def test_products_do_not_change(rng, k, block):
    x, w = (rng.standard_normal((n, k)).astype(np.float32) for n in (5, 9))
    changed = Basis(rng.uniform(0.5, 2, k).astype(np.float32) * transform.signs(k, 1), block)
    np.testing.assert_allclose(changed.inputs(x) @ changed.weights(w).T, x @ w.T, rtol=1e-4, atol=1e-3)


def test_walsh_hadamard_is_the_matrix_of_that_name():
    h = transform.walsh_hadamard(np.eye(8, dtype=np.float32), 8)
    np.testing.assert_array_equal(h[:2, :4], [[1, 1, 1, 1], [1, -1, 1, -1]])
    np.testing.assert_array_equal(h @ h.T, 8 * np.eye(8))
    both = transform.walsh_hadamard(np.eye(16, dtype=np.float32), 8)
    np.testing.assert_array_equal(both, np.kron(np.eye(2), h))


def test_an_outlier_is_spread_over_its_block():
    x = np.zeros((1, 128), np.float32)
    x[0, 3] = 64
    y = basis(Transform(hadamard=64), 128).inputs(x)
    assert (np.abs(y[0, :64]) == 64).all() and not y[0, 64:].any()


@pytest.mark.parametrize(("k", "block"), [(576, 64), (1536, 512), (768, 256), (3072, 512), (48, 16)])
def test_the_block_divides_the_row(k, block):
    found = basis(Transform(hadamard=512), k)
    assert (found.block, found.factors.shape, set(np.abs(found.factors))) == (block, (k,), {1})


def test_signs_are_the_same_everywhere():
    assert "".join("+-"[int(s < 0)] for s in transform.signs(24, 0)) == "+----+++-+-----+-+++----"
    assert not np.array_equal(transform.signs(64, 0), transform.signs(64, 1))
    assert abs(transform.signs(4096, 0).sum()) < 4 * 64


@pytest.mark.parametrize("size", [0, 2, 48, 8192, -64])
def test_odd_rotations_are_refused(size):
    with pytest.raises(InputError, match=f"{size}.*powers of two from 4 to 4096"):
        Transform(hadamard=size)


def test_smoothing_moves_loud_channels_to_the_weights(rng):
    x, w = np.array([4, 1, 0, 9], np.float32), np.array([1, 1, 3, 0], np.float32)
    np.testing.assert_allclose(transform.smoothing(x, w, 0.5), [0.5, 1, 1, 1])
    inputs = rng.standard_normal((7, 32)).astype(np.float32) * np.geomspace(0.1, 100, 32, dtype=np.float32)
    top = np.abs(inputs).max(0)
    smoothed = basis(Transform(smooth=1.0), 32, top, np.ones(32, np.float32)).inputs(inputs)
    np.testing.assert_allclose(np.abs(smoothed).max(0), 1, rtol=1e-6)


@pytest.mark.parametrize("alpha", [-0.1, 1.5, float("nan")])
def test_odd_smoothing_is_refused(alpha):
    with pytest.raises(InputError, match="0 to 1"):
        Transform(smooth=alpha)


def test_rows_that_cannot_be_rotated_are_refused():
    with pytest.raises(InputError, match="62.*multiple of 4"):
        basis(Transform(hadamard=64), 62)
