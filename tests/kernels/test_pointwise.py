"""Pointwise kernels against NumPy in float64, and rows that do not depend on their neighbours."""

import numpy as np
import pytest

from cachequant.kernels import pointwise
from cachequant.kernels.ir import exp

SHAPES = [(1, 1), (1, 576), (3, 7), (5, 33), (2, 768), (300, 130)]


def normal(shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * np.float32(scale)


def rms_norm(x):
    out = np.empty_like(x)
    pointwise.rms_norm(x, normal(x.shape[1], 1), 1e-5, out)
    return out


def layer_norm(x):
    out = np.empty_like(x)
    pointwise.layer_norm(x, normal(x.shape[1], 1), normal(x.shape[1], 2), 1e-5, out)
    return out


def silu_mul(x):
    wide = np.concatenate([x, x[:, ::-1]], axis=1)
    out = np.empty_like(x)
    pointwise.silu_mul(wide, out)
    return out


def gelu_tanh(x):
    out = x.copy()
    pointwise.gelu_tanh(out)
    return out


def true_rms_norm(x):
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * normal(x.shape[1], 1)


def true_layer_norm(x):
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt(x.var(1, keepdims=True) + 1e-5) * normal(x.shape[1], 1) + normal(x.shape[1], 2)


def true_silu_mul(x):
    return x / (1 + np.exp(-x)) * x[:, ::-1]


def true_gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


PAIRS = [
    pytest.param(rms_norm, true_rms_norm, id="rms_norm"),
    pytest.param(layer_norm, true_layer_norm, id="layer_norm"),
    pytest.param(silu_mul, true_silu_mul, id="silu_mul"),
    pytest.param(gelu_tanh, true_gelu_tanh, id="gelu_tanh"),
]


@pytest.mark.parametrize("kernel, truth", PAIRS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_float64(kernel, truth, shape):
    x = normal(shape, scale=4) + 1
    np.testing.assert_allclose(kernel(x), truth(x.astype(np.float64)), rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("kernel, truth", PAIRS)
def test_rows_are_independent(kernel, truth):
    x = normal((400, 130), 3)
    whole = kernel(x)
    assert np.concatenate([kernel(row[None]) for row in x]).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kernel", [silu_mul, gelu_tanh])
def test_activations_saturate(kernel):
    x = np.array([[-1e4, -200.0, -90.0, 90.0, 200.0, 1e4]], np.float32)
    out = kernel(x)
    assert np.isfinite(out).all()
    assert (out[0, :3] == 0).all()


def test_layer_norm_of_a_large_mean():
    x = normal((4, 768)) + 1000
    np.testing.assert_allclose(layer_norm(x), true_layer_norm(x.astype(np.float64)), atol=5e-4)


@pytest.mark.parametrize("d", [2, 20, 64])
def test_rope_rotates_strided_rows_in_place(d):
    tokens, heads, start = 9, 3, 5
    x, original = normal((tokens, heads + 2, d)), normal((tokens, heads + 2, d))
    angles = np.outer(np.arange(start + tokens), 1.0 / 10 ** np.linspace(0, 3, d // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    pointwise.rope(x[:, :heads], cos, sin, start)
    turn = np.exp(1j * angles[start:])[:, None]
    turned = (original[..., : d // 2] + 1j * original[..., d // 2 :])[:, :heads] * turn
    np.testing.assert_allclose(x[:, :heads], np.concatenate([turned.real, turned.imag], -1), atol=1e-6)
    np.testing.assert_array_equal(x[:, heads:], original[:, heads:])


def test_exp():
    from numba import njit

    @njit
    def each(x):
        out = np.empty_like(x)
        for i in range(x.size):
            out[i] = exp(x[i])
        return out

    x = np.concatenate([np.linspace(-87.3, 88.7, 100_001), np.linspace(-1, 1, 100_001)]).astype(np.float32)
    true = np.exp(x.astype(np.float64))
    assert (np.abs(each(x) - true) / true).max() < 1.5e-7
    edges = each(np.array([0.0, -0.0, -87.4, -1e30, -np.inf, 88.8, 1e30, np.inf, np.nan], np.float32))
    np.testing.assert_array_equal(edges, [1, 1, 0, 0, 0, np.inf, np.inf, np.inf, np.nan])
