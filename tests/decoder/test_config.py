import dataclasses
import json

import numpy as np
import pytest

from cachequant.decoder.config import DecoderConfig, LinearScaling, Llama3Scaling
from cachequant.errors import ConfigError
from helpers import TINY

GPT2 = {"model_type": "gpt2", "vocab_size": 50, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}
QWEN2 = LLAMA | {"model_type": "qwen2", "num_key_value_heads": 1}
MISTRAL = LLAMA | {"model_type": "mistral", "num_key_value_heads": 1, "max_position_embeddings": 8192}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def from_transformers(fields):
    transformers = pytest.importorskip("transformers")
    fields = dict(fields)
    return transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)


@pytest.mark.parametrize("name", TINY)
def test_configurations_survive_the_way_through_transformers(name):
    config = DecoderConfig.from_hf(from_transformers(TINY[name]).to_dict())
    again = DecoderConfig.from_hf(from_transformers(config.to_hf()).to_dict())
    assert config == again == DecoderConfig.from_hf(json.loads(json.dumps(config.to_hf())))
    assert config == DecoderConfig.from_json(json.loads(json.dumps(config.to_json())))


def test_gpt2_small_as_its_own_file_has_it():
    published = GPT2 | {
        "vocab_size": 50257, "n_positions": 1024, "n_ctx": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256,
        "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
        "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    }  # fmt: skip
    from cachequant.decoder.random import GPT2_SMALL

    assert DecoderConfig.from_hf(published) == GPT2_SMALL
    assert len(GPT2_SMALL.linear_names()) == 48


def test_biases_of_each_family():
    assert DecoderConfig.from_hf(QWEN2).attention_bias and not DecoderConfig.from_hf(QWEN2).output_bias
    llama = DecoderConfig.from_hf(LLAMA | {"attention_bias": True})
    assert llama.attention_bias and llama.output_bias and not llama.mlp_bias
    mixed = dataclasses.replace(llama, attention_bias=False)
    with pytest.raises(ConfigError, match="no Hugging Face model"):
        mixed.to_hf()


def test_head_size_may_differ_from_width_over_heads():
    config = DecoderConfig.from_hf(LLAMA | {"head_dim": 32})
    assert (config.attention_width, config.kv_width, config.width) == (96, 96, 24)


@pytest.mark.parametrize(
    "fields",
    [
        LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
    ],
    ids=["older", "newer"],
)
def test_both_spellings_of_rope(fields):
    config = DecoderConfig.from_hf(fields)
    assert (config.rope_theta, config.rope_scaling) == (5e5, LinearScaling(2.0))


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.5}, LLAMA3])
def test_frequencies_are_those_of_transformers(rope):
    fields = LLAMA | {"head_dim": 64, "rope_parameters": {"rope_theta": 10000.0, **rope}}
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    want = LlamaRotaryEmbedding(from_transformers(fields)).inv_freq.numpy()
    found = DecoderConfig.from_hf(fields).rope_frequencies()
    assert found.dtype == np.float64 and found.shape == (32,)
    np.testing.assert_allclose(found, want, rtol=2e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (GPT2 | {"activation_function": "relu"}, "activation_function is 'relu'.*'gelu_new'"),
        (GPT2 | {"scale_attn_weights": False}, "scale_attn_weights is False.*allowed: True"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention is True"),
        (GPT2 | {"n_head": 5}, "n_embd = 24 is not a multiple of n_head = 5"),
        (GPT2 | {"quantization_config": {"bits": 4}}, "quantization_config is"),
        (GPT2 | {"brand_new": 3}, "brand_new is 3, a field of gpt2"),
        ({k: v for k, v in GPT2.items() if k != "n_layer"}, "lacks n_layer"),
        (GPT2 | {"n_layer": 0}, "layers is 0"),
        (GPT2 | {"n_layer": "2"}, "n_layer is '2', it must be an integer"),
        (GPT2 | {"eos_token_id": 50}, "token id 50"),
        (LLAMA | {"hidden_act": "gelu"}, "hidden_act is 'gelu'.*'silu'"),
        (LLAMA | {"num_key_value_heads": 2}, "heads = 3 is not a multiple of kv_heads = 2"),
        (LLAMA | {"head_dim": 7}, "head_dim is 7.*even"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope type is 'yarn'; allowed: default, linear"),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, "factor is None"),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": -1.0}}, "factor is -1.0"),
        (LLAMA | {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor 1.0 must exceed"),
        (LLAMA | {"rope_scaling": LLAMA3 | {"attention_factor": 2.0}}, "attention_factor is 2.0"),
        (LLAMA | {"rope_theta": 0.0}, "rope_theta is 0.0"),
        (LLAMA | {"sliding_window": 16}, "sliding_window is 16, shorter than the context of 64"),
        (LLAMA | {"qk_norm": True}, "qk_norm is True"),
        (LLAMA | {"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        (LLAMA | {"rms_norm_eps": 0.0}, "norm_eps is 0.0"),
        (MISTRAL, "sliding_window is 4096"),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": 8}, "sliding_window is 8"),
        (LLAMA | {"model_type": "qwen3"}, "model_type is 'qwen3'; allowed: gpt2, llama, mistral, qwen2"),
        ({}, "model_type is None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_not_handled_is_refused_by_name(fields, message):
    with pytest.raises(ConfigError, match=message):
        DecoderConfig.from_hf(fields)


@pytest.mark.parametrize(
    "fields",
    [
        LLAMA | {"sliding_window": None},
        LLAMA | {"sliding_window": 64},
        MISTRAL | {"sliding_window": None},
        QWEN2 | {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1},
        GPT2 | {"brand_new": None, "another": False, "third": {}},
        GPT2 | {"reorder_and_upcast_attn": True},
    ],
    ids=["null window", "window as long as the context", "mistral without", "qwen2 unused", "switched off", "upcast"],
)
def test_what_is_not_in_effect_is_accepted(fields):
    DecoderConfig.from_hf(fields)


def test_learned_positions_have_no_frequencies():
    with pytest.raises(ConfigError, match="learned positions"):
        DecoderConfig.from_hf(GPT2).rope_frequencies()


def test_scalings_survive_json():
    config = DecoderConfig.from_hf(LLAMA | {"rope_scaling": LLAMA3})
    assert config.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 32)
    assert DecoderConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_json_of_something_else_is_refused():
    with pytest.raises(ConfigError, match="not a decoder configuration"):
        DecoderConfig.from_json({"family": "gpt2"})


@pytest.mark.parametrize("fields", [GPT2, LLAMA, QWEN2, MISTRAL], ids=lambda fields: fields["model_type"])
@pytest.mark.parametrize("value", [None, "24", [], [None], {"a": 1}, -1, 0, 1.5, True, 10**30, float("nan")], ids=repr)
def test_odd_values_raise_nothing_else(fields, value):
    optional = ("head_dim", "sliding_window", "layer_types", "rope_theta", "rope_scaling", "rope_parameters", "n_inner")
    more = ("eos_token_id", "bos_token_id", "tie_word_embeddings", "rms_norm_eps", "layer_norm_epsilon", "mlp_bias")
    for name in (
        *fields,
        *optional,
        *more,
        "attention_bias",
        "hidden_act",
        "activation_function",
        "use_sliding_window",
    ):
        try:
            DecoderConfig.from_hf(fields | {name: value}).to_hf()
        except ConfigError:
            pass
