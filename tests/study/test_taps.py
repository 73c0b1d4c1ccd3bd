"""Taps see what goes into linear layers and change nothing unless asked to."""

import numpy as np
import pytest

import cachequant as cq
from cachequant import schemes
from cachequant.quantize import dequantize, quantize
from cachequant.schemes import INT8, Scheme
from cachequant.study import causes, taps
from helpers import checkpoint

IDS = list(range(2, 40))


@pytest.fixture(scope="module", params=["gpt2", "llama-gqa-tied"])
def model(request, tmp_path_factory):
    return cq.load(checkpoint(request.param, str(tmp_path_factory.mktemp("taps"))))


def logits(model):
    with model.session() as session:
        return session.extend(IDS, logits="all")


def test_looking_changes_no_bit(model):
    seen = []
    watched = taps.tapped(model, lambda layer, site, x: seen.append((layer, site)) or x, "watched")
    np.testing.assert_array_equal(logits(watched), logits(model))
    assert seen == [(i, s) for i in range(model.config.layers) for s in taps.SITES]


def test_capture_has_every_input_in_full(model):
    found = taps.capture(model, IDS)
    c = model.config
    widths = {"qkv": c.width, "output": c.attention_width, "up": c.width, "down": c.ffn}
    assert {key: x.shape for key, x in found.items()} == {
        (i, s): (len(IDS), widths[s]) for i in range(c.layers) for s in taps.SITES
    }


def test_tapped_model_is_not_taken_for_the_plain_one(model):
    other = taps.tapped(model, taps.fake_quantized(INT8), "inputs-int8")
    assert other.fingerprint != model.fingerprint
    assert model.scheme.name == "fp32"
    assert not isinstance(model._decoder.layers[0].qkv, type(other._decoder.layers[0].qkv))


def test_rounded_inputs_and_weights_are_the_scheme_up_to_float_rounding(model):
    both = taps.tapped(model.with_scheme("w8"), taps.fake_quantized(INT8), "both")
    np.testing.assert_allclose(logits(both), logits(model.with_scheme("int8")), atol=2e-3)


def test_only_the_named_sites_are_rounded(rng):
    x = rng.standard_normal((3, 64), np.float32)
    tap = taps.fake_quantized(INT8, ("down",))
    assert tap(0, "qkv", x) is x
    np.testing.assert_array_equal(tap(0, "down", x), dequantize(quantize(x, INT8)))


@pytest.mark.parametrize("name", causes.PARTS)
def test_every_part_makes_a_model_that_differs(model, name):
    study = causes.Causes(model)
    assert study.config is model.config
    found = logits(study.with_scheme(Scheme(name)))
    assert np.isfinite(found).all()
    assert (found != logits(model)).any()


def test_weights_only_parts_are_the_presets(model):
    study = causes.Causes(model)
    for part, preset in (("weights-int8", "w8"), ("weights-bfp8", "bfp8-w")):
        assert schemes.get(preset).activation is None
        np.testing.assert_array_equal(logits(study.with_scheme(Scheme(part))), logits(model.with_scheme(preset)))
