import numpy as np
import pytest

from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.random import random_weights
from cachequant.decoder.weights import check_finite, check_shapes, tensor_shapes
from cachequant.errors import AssetError, NumericsError
from helpers import TINY

EXPECTED = {"a": (2, 3), "b": (4,)}


def test_weights_are_a_mapping_with_sizes():
    weights = random_weights(DecoderConfig.from_hf(TINY["gpt2"]))
    assert weights.nbytes == 4 * weights.parameters == sum(4 * tensor.size for tensor in weights.values())
    assert "embed.weight" in weights and "head.weight" not in weights
    with pytest.raises(KeyError):
        weights["head.weight"]


@pytest.mark.parametrize("name", TINY)
def test_every_linear_layer_has_its_tensors(name):
    config = DecoderConfig.from_hf(TINY[name])
    shapes = tensor_shapes(config)
    assert {f"{linear}.weight" for linear in config.linear_names()} <= set(shapes)
    assert ("head.weight" in shapes) == (not config.tied)
    assert ("positions.weight" in shapes) == (config.family == "gpt2")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"a": (2, 3)}, "'b' of shape .4,. is missing"),
        ({"a": (3, 2), "b": (4,)}, "'a' has shape .3, 2., the model needs .2, 3."),
        ({**EXPECTED, "c": (1,), "d": (1,)}, "unexpected tensor 'c' .2 that"),
    ],
    ids=["missing", "shape", "unexpected"],
)
def test_wrong_sets_of_tensors_are_refused(found, message):
    check_shapes(EXPECTED, EXPECTED, "file")
    with pytest.raises(AssetError, match=f"file: .*{message}"):
        check_shapes(EXPECTED, found, "file")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_place(value):
    tensor = np.full((3, 4), np.finfo(np.float32).max, np.float32)  # its float32 sum would overflow
    check_finite("x", tensor, "file")
    tensor[2, 1] = value
    with pytest.raises(NumericsError, match=rf"file: x\[2, 1\] is {value}; .*\(1 are not\)"):
        check_finite("x", tensor, "file")


def test_opposite_infinities_do_not_hide():
    with pytest.raises(NumericsError, match="2 are not"):
        check_finite("x", np.array([np.inf, 1, -np.inf], np.float32), "file")
