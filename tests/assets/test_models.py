import os
import subprocess
import sys

import numpy as np
import pytest

from cachequant.assets import models, pins, texts
from cachequant.decoder.random import GPT2_SMALL, random_tensor
from cachequant.errors import AssetError, InputError


@pytest.mark.parametrize("name", ["smollm2-135m", pins.SMOLLM2_NAME])
def test_the_embedded_model(name):
    asset = models.resolve(name)
    config = asset.config
    assert asset.name == "smollm2-135m-instruct-q4_1"
    assert asset.sha256 == pins.SMOLLM2.sha256
    assert asset.origin["licence"] == "Apache-2.0"
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.width, config.ffn, config.vocab, config.context, config.tied) == (576, 1536, 49152, 8192, True)
    assert (config.rope_theta, config.norm_eps, config.eos_ids, config.bos_id) == (100000.0, 1e-5, (2,), 1)
    assert len(config.linear_names()) == 210
    assert asset.weights.parameters == 134_515_008
    assert "<|im_start|>" in asset.chat_template and not asset.random


@pytest.mark.skipif("CACHEQUANT_WIKITEXT" not in os.environ, reason="CACHEQUANT_WIKITEXT names no folder")
def test_tokens_of_wikitext_are_those_of_the_model():
    raw = texts.resolve("wikitext-2-test-raw").text
    assert len(models.resolve("smollm2-135m").tokenizer.encode(raw)) == 303_415


def test_digits_are_single_tokens():
    tokenizer = models.resolve("smollm2-135m").tokenizer
    assert [tokenizer.decode([i]) for i in tokenizer.encode("in 1987")] == ["in", " ", "1", "9", "8", "7"]


def test_random_weights_have_the_shape_of_gpt2_and_no_tokenizer():
    asset = models.resolve("gpt2-random")
    assert asset.config == GPT2_SMALL and asset.weights.parameters == 124_439_808
    assert asset.random and asset.tokenizer is None and asset.chat_template is None
    name = "layers.11.mlp.down.weight"
    assert np.array_equal(asset.weights[name], random_tensor(GPT2_SMALL, 0, name))


def test_a_warm_start_is_fast_and_light():
    models.resolve("smollm2-135m")
    code = """
import sys, time
from cachequant.assets import models
asset = models.resolve("smollm2-135m")
asset.tokenizer.encode("The history of Paris")
print(time.process_time(), *({"torch", "transformers", "gguf", "huggingface_hub"} & set(sys.modules)))
"""
    seconds, *heavy = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert heavy == []
    assert float(seconds) < 2  # of processor time, the interpreter's start included; 0.5 s on an idle machine


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("no such model", InputError),
        ("", InputError),
        ("a/b/c", AssetError),
        ("./gone", AssetError),
        ("/gone/folder", AssetError),
        ("gone.gguf", AssetError),
    ],
)
def test_names_that_cannot_be_models_are_refused_with_the_choices(name, error):
    with pytest.raises(error, match="allowed: smollm2-135m, gpt2, gpt2-random, a hub id"):
        models.resolve(name)
