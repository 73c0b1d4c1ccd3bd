"""Tiny transformers checkpoints with random weights, one for each thing that a configuration can vary."""

from functools import cache

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from cachequant import schemes
from cachequant.assets.store import ModelAsset
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.forward import Decoder
from cachequant.decoder.model import Model
from cachequant.decoder.weights import Weights, tensor_shapes

GPT2 = dict(
    model_type="gpt2", vocab_size=131, n_positions=96, n_embd=40, n_layer=2, n_head=5,
    bos_token_id=None, eos_token_id=None,
)  # fmt: skip
LLAMA = dict(
    model_type="llama", vocab_size=131, max_position_embeddings=96, hidden_size=48, intermediate_size=80,
    num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
TINY = {
    "gpt2": GPT2,
    "llama-gqa-tied": LLAMA,
    "llama-odd-heads-untied": LLAMA
    | dict(num_attention_heads=3, num_key_value_heads=3, head_dim=20, tie_word_embeddings=False),
    "llama-biases": LLAMA | dict(attention_bias=True, mlp_bias=True),
    "llama3-rope": LLAMA | dict(rope_parameters=LLAMA3 | {"rope_theta": 10000.0}),
    "llama-linear-rope": LLAMA | dict(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
    "llama-coded": LLAMA | dict(hidden_size=64, num_attention_heads=4, head_dim=16),
    "llama-wide-heads": LLAMA | dict(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1,
                                     head_dim=32),
    "qwen2": LLAMA | dict(model_type="qwen2", num_attention_heads=6, hidden_size=48, head_dim=8),
}  # fmt: skip


def transformers_model(name: str, **changes):
    """A transformers model of `TINY[name]` with seeded weights large enough that logits differ clearly."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = TINY[name] | changes
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(fields.pop("model_type"), **fields), dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if parameter.ndim == 1 else 0.0))
    return model.eval()


@cache
def checkpoint(name: str, root: str) -> str:
    """Folder below `root` with `transformers_model(name)` saved in it."""
    folder = f"{root}/{name}"
    transformers_model(name).save_pretrained(folder)
    return folder


def transformers_logits(model, ids) -> np.ndarray:
    """(T, V) float32 logits of one forward pass."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([list(ids)])).logits[0].numpy()


def random_splits(rng: np.random.Generator, length: int, parts: int) -> list[slice]:
    """Cuts [0, length) at random places."""
    cuts = np.sort(rng.choice(np.arange(1, length), parts - 1, replace=False))
    return [slice(a, b) for a, b in zip([0, *cuts], [*cuts, length], strict=True)]


def random_model(scheme: str = "fp32", context: int = 256, tokenizer=None, chat_template=None, **changes) -> Model:
    """A llama with 61 tokens, two layers and seeded random weights; `changes` are of its configuration."""
    shape = dict(width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, norm_eps=1e-5, tied=True)
    fields = shape | dict(family="llama", activation="silu", rope_theta=1e4, vocab=61) | changes
    config, rng = DecoderConfig(context=context, **fields), np.random.default_rng(7)
    tensors = {n: rng.standard_normal(s, np.float32) * np.float32(0.3) for n, s in tensor_shapes(config).items()}
    weights = Weights(tensors, "7" * 64)
    asset = ModelAsset("random", config, weights, tokenizer, "7" * 64, True, chat_template, {})
    return Model(asset, Decoder(config, weights, schemes.get(scheme)))


def byte_level() -> str:
    """A tokenizer of the 256 bytes, a few merges and two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    tokens = [*alphabet, *(a + b for a, b in merges)]
    library = Library(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<start>", special=True)])
    return library.to_str()


def assert_near(got, want) -> None:
    """Logits (..., V) over codes equal others up to float32 rounding, which also lets a value between two levels fall
    the other way now and then: in few rows, and by no more than a level is worth."""
    errors = np.abs(np.asarray(got) - np.asarray(want)).max(-1)
    assert np.median(errors) < 2e-3
    assert np.quantile(errors, 0.98) < 0.03
    assert errors.max() < 0.3
