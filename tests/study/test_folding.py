"""Folding the final norm changes the head and not the function."""

import dataclasses

import numpy as np
import pytest

from cachequant import schemes
from cachequant.errors import InputError
from cachequant.study import folding
from helpers import random_model

IDS = list(range(1, 30))


@pytest.mark.parametrize("tied", [True, False])
def test_the_function_is_the_same_and_the_head_is_not(tied):
    model = random_model(tied=tied)
    asset = model._asset
    folded = folding.folded(asset)
    assert folding.difference(model, folded, IDS) < 1e-5
    assert not folded.config.tied
    before = asset.weights["embed.weight" if tied else "head.weight"]
    assert not np.array_equal(folded._asset.weights["head.weight"], before)
    assert np.array_equal(folded._asset.weights["embed.weight"], asset.weights["embed.weight"])
    assert (folded._asset.weights["final_norm.weight"] == 1).all()
    assert folded.sha256 != model.sha256


def test_a_wrong_fold_is_seen():
    model = random_model()
    wrong = folding.folded(random_model(vocab=61, norm_eps=1e-2)._asset)
    assert folding.difference(model, wrong, IDS) > 1e-5


def test_what_cannot_be_folded_is_refused():
    asset = random_model()._asset
    with pytest.raises(InputError, match="is quantized, as 'int8'"):
        folding.fold(dataclasses.replace(asset, scheme=schemes.get("int8")))
    gpt2 = dict(family="gpt2", activation="gelu_tanh", kv_heads=4, attention_bias=True, output_bias=True, mlp_bias=True)
    with pytest.raises(InputError, match="has a bias in its final norm"):
        folding.fold(random_model(rope_theta=None, **gpt2)._asset)
