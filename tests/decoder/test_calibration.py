"""Largest inputs of the channels, and schemes that are packed by them."""

import numpy as np
import pytest

import cachequant as cq
from cachequant import schemes
from cachequant.decoder import calibration, linear
from cachequant.decoder.forward import SITES
from cachequant.errors import InputError
from cachequant.schemes import INT8, Scheme, Transform
from cachequant.study import taps
from helpers import checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint("llama-gqa-tied", str(tmp_path_factory.mktemp("checkpoints")))


def logits(model, ids):
    with model.session() as session:
        return session.extend(ids, logits="all")


def test_largest_inputs_are_those_that_taps_see(folder, rng):
    model, ids = cq.load(folder), rng.integers(0, 131, 40).tolist()
    largest, seen = calibration.largest_inputs(model._decoder, ids), taps.capture(model, ids)
    assert set(largest) == {(i, s) for i in range(2) for s in SITES}
    for key, x in seen.items():
        np.testing.assert_array_equal(largest[key], np.abs(x).max(0))


def test_a_calibrated_scheme_is_the_same_from_any_model(folder, rng):
    ids, scheme = rng.integers(0, 131, 30), schemes.get("int8-smooth")
    whole = logits(cq.load(folder, scheme), ids)
    for base in ("fp32", "int8"):
        assert np.array_equal(whole, logits(cq.load(folder, base).with_scheme(scheme), ids))
    assert not np.array_equal(whole, logits(cq.load(folder, "int8"), ids))


def test_smoothing_goes_with_a_rotation(folder, rng):
    ids, both = rng.integers(0, 131, 30), Scheme("both", INT8, INT8, transform=Transform(hadamard=16, smooth=0.5))
    want, got = (logits(cq.load(folder, s), ids) for s in ("fp32", both))
    assert np.linalg.norm(got - want) < 0.4 * np.linalg.norm(want)


def test_a_matrix_alone_cannot_be_smoothed(rng):
    with pytest.raises(InputError, match="largest inputs"):
        linear.pack([rng.standard_normal((4, 8)).astype(np.float32)], [None], schemes.get("int8-smooth"))


def test_what_cannot_be_rotated_is_refused_before_packing(tmp_path):
    from cachequant.decoder.config import DecoderConfig
    from cachequant.decoder.forward import Decoder

    config = DecoderConfig(
        family="llama", vocab=31, context=16, width=48, layers=1, heads=3, kv_heads=3, head_dim=10, ffn=64,
        norm_eps=1e-5, activation="silu", rope_theta=1e4, tied=True,
    )  # fmt: skip
    with pytest.raises(InputError, match="30 values cannot be rotated"):
        Decoder(config, {}, schemes.get("int8-hadamard"))
