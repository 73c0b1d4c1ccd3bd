import numpy as np

from cachequant.decoder import random
from cachequant.decoder.config import DecoderConfig
from helpers import TINY

CONFIG = DecoderConfig.from_hf(TINY["llama-biases"])


def test_the_same_seed_gives_the_same_weights_and_another_does_not():
    one, again, other = (random.random_weights(CONFIG, seed) for seed in (1, 1, 2))
    assert one.sha256 == again.sha256 != other.sha256
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert not np.array_equal(one["embed.weight"], other["embed.weight"])


def test_tensors_of_one_shape_differ():
    weights = random.random_weights(CONFIG)
    assert not np.array_equal(weights["layers.0.mlp.up.weight"], weights["layers.1.mlp.up.weight"])


def test_values_are_pinned():
    found = random.bell(np.random.PCG64(0), 3)
    assert found.dtype == np.float32
    words = np.random.PCG64(0).random_raw(3).view(np.uint16).reshape(3, 4).astype(np.float64)
    want = (words.sum(axis=1) - 4 * 65535 / 2) / np.sqrt(4 * (65536**2 - 1) / 12)
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_moments_are_those_of_a_unit_variable():
    values = random.bell(np.random.PCG64(1), 400_000)
    assert abs(values.mean()) < 0.01 and abs(values.std() - 1) < 0.01 and np.abs(values).max() < 3.47


def test_everything_is_filled_and_finite():
    for name, tensor in random.random_weights(CONFIG).items():
        assert tensor.dtype == np.float32 and np.isfinite(tensor).all() and tensor.std() > 0, name
