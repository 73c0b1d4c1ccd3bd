"""Seeded random weights: for speed and memory at a model's exact shape, and for tests. They carry no training."""

import hashlib
import json
import math

import numpy as np

from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.weights import Weights, tensor_shapes

GPT2_SMALL = DecoderConfig(
    family="gpt2", vocab=50257, context=1024, width=768, layers=12, heads=12, kv_heads=12, head_dim=64, ffn=3072,
    norm_eps=1e-5, activation="gelu_tanh", tied=True, attention_bias=True, output_bias=True, mlp_bias=True,
    eos_ids=(50256,), bos_id=50256,
)  # fmt: skip
_TINY = dict(vocab=67, context=600, width=64, layers=1, heads=2, head_dim=32, ffn=96, norm_eps=1e-5, tied=True)
TINY = {  # one of each family, for what has to run once: compiling, and loading what was compiled
    "llama": DecoderConfig(family="llama", activation="silu", kv_heads=1, rope_theta=1e4, **_TINY),
    "gpt2": DecoderConfig(
        family="gpt2", activation="gelu_tanh", kv_heads=2, attention_bias=True, output_bias=True, mlp_bias=True, **_TINY
    ),
}
_RULE = "irwin-hall-4x16-pcg64-1"  # raise the number when the same seed gives other values


def random_weights(config: DecoderConfig, seed: int = 0) -> Weights:
    """All tensors of `config`, in memory.

    Parameters
    ----------
    config : DecoderConfig
    seed : int

    Returns
    -------
    Weights
        Matrices with standard deviation 1/sqrt(columns), those that write into the residual stream divided by
        sqrt(2 x layers) (Radford et al. 2019, section 2.3); norm gains around 1; biases of 0.02.
    """
    tensors = {name: random_tensor(config, seed, name) for name in tensor_shapes(config)}
    return Weights(tensors, identity(config, seed))


def random_tensor(config: DecoderConfig, seed: int, name: str) -> np.ndarray:
    """One tensor, which depends on configuration, seed and name only."""
    shape = tensor_shapes(config)[name]
    digest = hashlib.sha256(f"{_RULE} {seed} {name}".encode()).digest()
    values = bell(np.random.PCG64(int.from_bytes(digest[:16], "little")), math.prod(shape)).reshape(shape)
    if len(shape) == 1:
        scale, centre = (0.05, 1.0) if name.endswith("norm.weight") else (0.02, 0.0)
    else:
        into_residual = name.endswith((".attn.o.weight", ".mlp.down.weight"))
        scale, centre = shape[1] ** -0.5 / (math.sqrt(2 * config.layers) if into_residual else 1.0), 0.0
    values *= np.float32(scale)
    values += np.float32(centre)
    return values


def identity(config: DecoderConfig, seed: int) -> str:
    """sha256 that stands for the weights of `random_weights(config, seed)`."""
    return hashlib.sha256(json.dumps([_RULE, seed, config.to_json()], sort_keys=True).encode()).hexdigest()


def bell(generator: np.random.PCG64, count: int) -> np.ndarray:
    """`count` float32 values of mean 0 and variance 1: sums of four uniform 16-bit integers, scaled.

    Integers only until the last step, so that the values are the same on every machine, which the logarithms and tables
    behind normal variates do not promise. Bounded by 3.47.
    """
    scale = np.float32(1 / math.sqrt(4 * (65536**2 - 1) / 12))
    values = np.empty(count, np.float32)
    for start in range(0, count, 1 << 20):
        part = values[start : start + (1 << 20)]
        words = generator.random_raw(len(part))
        total = (words & 0xFFFF) + (words >> 16 & 0xFFFF) + (words >> 32 & 0xFFFF) + (words >> 48)
        np.subtract(total.astype(np.int32), 2 * 65535, out=part, casting="unsafe")
        part *= scale
    return values
