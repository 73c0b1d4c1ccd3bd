"""Bits by measured sensitivity."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.errors import InputError
from cachequant.kv import Attention, formats, sensitivity
from cachequant.kv.basis import plain
from helpers import checkpoint


def test_equal_sides_get_equal_bits():
    assert sensitivity.allocate(np.ones((4, 2))) == formats.get("k3v3")
    assert sensitivity.allocate(np.ones((4, 2)), average=4).layers(4) == [(4, 4)] * 4


def test_bits_go_where_they_gain_most():
    divergence = np.ones((5, 2))
    divergence[0], divergence[1, 0], divergence[3:, 1] = 100, 3, 0.01
    format = sensitivity.allocate(divergence)
    assert format.name == "k3v3,0:k4v4,3-4:k3v2"
    assert format.layers(5) == [(4, 4), (3, 3), (3, 3), (3, 2), (3, 2)]
    assert np.mean(format.layers(5)) == 3
    assert format.bits_per_value(5, 64) == formats.get("k3v3").bits_per_value(5, 64)


def test_no_other_choice_of_the_same_size_is_better(rng):
    divergence = rng.lognormal(0, 2, (2, 2))
    cost = [sensitivity.DISTORTION[b] for b in (2, 3, 4)]

    def expected(bits):
        return (divergence * np.take(cost, np.array(bits) - 2)).sum()

    every = [np.reshape(np.unravel_index(i, (3,) * 4), (2, 2)) + 2 for i in range(81)]
    best = min(expected(bits) for bits in every if bits.sum() <= 12)
    assert expected(sensitivity.allocate(divergence).layers(2)) == pytest.approx(best)


def test_a_side_that_costs_more_is_seen(tmp_path, rng):
    model = cq.load(checkpoint("llama-coded", str(tmp_path)))
    c = model.config
    basis = plain(c.layers, c.kv_heads, c.head_dim)
    found = sensitivity.measure(model._decoder, basis, rng.integers(0, 131, 96))
    assert found.shape == (c.layers, 2)
    assert (found > 0).all()


def test_it_needs_a_model_that_reads_text(tmp_path):
    with pytest.raises(InputError, match="'mixed' is measured on a model"):
        Attention(2, 2, 16, kv="mixed")
    with pytest.raises(InputError, match="has no tokenizer"):
        cq.load(checkpoint("llama-coded", str(tmp_path)), kv="mixed")
