"""GGUF files as models: configuration from the metadata, tensors as float32, and those in Q8_0 also as they are.

llama.cpp's converter permutes the rows of q and k in the llama architecture, from RoPE on halves (Hugging Face) to RoPE
on neighbours; that is undone here. A block of Q8_0 is a float16 step and 32 codes, which is what a matrix in blocks of
32 with float16 scales is here, so such codes are kept beside the float32 values.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from cachequant.assets.gguf_file import GgufFile, GgufTensor, dequantize
from cachequant.assets.gguf_tokenizer import build_tokenizer
from cachequant.assets.hashing import sha256_remembered
from cachequant.assets.names import gguf_name
from cachequant.assets.store import ModelSource
from cachequant.checkpoint.invariants import check_quantized
from cachequant.decoder.config import DecoderConfig, LinearScaling, Llama3Scaling, RopeScaling
from cachequant.decoder.weights import tensor_shapes
from cachequant.errors import AssetError, ConfigError
from cachequant.quantize import Quantized
from cachequant.schemes import Q8_0

BLOCK, _STEP_BYTES = 32, 2  # codes that share a step in Q8_0, and its size: float16
_ARCHITECTURES = {"gpt2": "gpt2", "llama": "llama", "qwen2": "llama"}
# Keys below `<architecture>.` that are read, or do not change what one forward pass computes.
_HANDLED = frozenset(
    """
    block_count context_length embedding_length feed_forward_length attention.head_count attention.head_count_kv
    attention.key_length attention.value_length attention.layer_norm_epsilon attention.layer_norm_rms_epsilon
    rope.freq_base rope.dimension_count rope.scaling.type rope.scaling.factor vocab_size
    """.split()
)
# Llama 3.x files hold a factor for each frequency instead of the rule; (low, high, original) of all published models
_LLAMA3 = (1.0, 4.0, 8192)


def open_gguf(path: Path, name: str | None = None, origin: Mapping[str, str] | None = None) -> ModelSource:
    """A GGUF file as a model source.

    Parameters
    ----------
    path : Path
    name : str, optional
        Shown in tables; the file's stem by default.
    origin : mapping, optional
        Kept with the converted model.

    Raises
    ------
    AssetError
        The file is missing, truncated or inconsistent. A type that cannot be dequantized is found when it is read.
    ConfigError
        An architecture, option or tokenizer that is not handled.
    """
    path = Path(path)
    file = GgufFile(path)
    fields, tensors = file.fields, file.tensors
    config = read_config(fields, tensors)
    names = {canonical: gguf_name(config, canonical) for canonical in tensor_shapes(config)}
    shapes = {canonical: tensors[stored].shape for canonical, stored in names.items() if stored in tensors}
    known = {*names.values(), "rope_freqs.weight"}
    shapes |= {stored: tensor.shape for stored, tensor in tensors.items() if stored not in known}

    def order(canonical: str, rows: np.ndarray) -> np.ndarray:
        heads = {"q": config.heads, "k": config.kv_heads}.get(canonical.rsplit(".", 2)[1])
        return unpermute(rows, heads) if heads and fields["general.architecture"] == "llama" else rows

    def read_codes(canonical: str) -> Quantized | None:
        found = q8_0(tensors[names[canonical]])
        return found and Quantized(order(canonical, found.codes), order(canonical, found.scales), found.quantizer)

    return ModelSource(
        name=name or path.stem,
        sha256=sha256_remembered(path),
        config=config,
        shapes=shapes,
        read=lambda canonical: order(canonical, dequantize(tensors[names[canonical]])),
        read_codes=read_codes,
        tokenizer=build_tokenizer(fields),
        chat_template=_text(fields, "tokenizer.chat_template"),
        origin={"file": path.name, "format": "gguf", **_licence(fields), **(origin or {})},
    )


def q8_0(tensor: GgufTensor) -> Quantized | None:
    """The codes and float16 steps of a Q8_0 matrix as they are.

    None for another type, and for a matrix with codes or steps that no quantizer of this library writes (-128, or a
    negative step): those are read as float32.
    """
    if tensor.kind != GGMLQuantizationType.Q8_0 or len(tensor.shape) != 2:
        return None
    blocks = tensor.data.reshape(tensor.shape[0], -1, _STEP_BYTES + BLOCK)
    scales = np.ascontiguousarray(blocks[:, :, :_STEP_BYTES]).view("<f2")[:, :, 0]
    codes = np.ascontiguousarray(blocks[:, :, _STEP_BYTES:]).view(np.int8).reshape(tensor.shape)
    found = Quantized(codes, scales.astype(np.float16, copy=False), Q8_0)
    try:
        check_quantized(found, tensor.name, tensor.name)
    except AssetError:
        return None
    return found


def unpermute(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a llama q or k matrix (or bias), from neighbouring RoPE pairs back to the two halves of each head."""
    pairs = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, pairs, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def read_config(fields: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> DecoderConfig:
    """The configuration from metadata; biases and a tied head from the tensors that are there.

    Raises
    ------
    ConfigError
        An architecture or key that is not handled, or a key that is missing.
    """
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        raise ConfigError(f"general.architecture is {architecture!r}; allowed: {', '.join(_ARCHITECTURES)}")
    family = _ARCHITECTURES[architecture]
    for key, value in fields.items():
        inner = key.removeprefix(f"{architecture}.")
        if inner != key and inner not in _HANDLED and value:
            raise ConfigError(f"{key} is {str(value)[:80]}, an option that the decoder does not handle")
    get = _Keys(fields, architecture)
    if "token_embd.weight" not in tensors:
        raise AssetError("tensor 'token_embd.weight' is missing")
    embedding = tensors["token_embd.weight"].shape
    if len(embedding) != 2:
        raise AssetError(f"tensor 'token_embd.weight' has shape {embedding}; allowed: (tokens, width)")
    vocab, width = embedding
    heads = get.size("attention.head_count")
    head_dim = get.size("attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if get.size(key, head_dim) != head_dim:
            raise ConfigError(f"{architecture}.{key} is {get.size(key)}; allowed: the head size {head_dim}")
    layers = get.size("block_count")
    if layers > len(tensors):
        raise ConfigError(f"{architecture}.block_count is {layers}, but the file has {len(tensors)} tensors")
    llama = family == "llama"
    epsilon = "attention.layer_norm_rms_epsilon" if llama else "attention.layer_norm_epsilon"
    return DecoderConfig(
        family=family,
        vocab=vocab,
        context=get.size("context_length"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=get.size("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=get.size("feed_forward_length"),
        norm_eps=_shortest(get.real(epsilon)),
        activation="silu" if llama else "gelu_tanh",
        tied="output.weight" not in tensors,
        rope_theta=get.real("rope.freq_base", 10000.0) if llama else None,
        rope_scaling=_read_scaling(get, tensors, head_dim) if llama else None,
        attention_bias="blk.0.attn_q.bias" in tensors or not llama,
        output_bias="blk.0.attn_output.bias" in tensors or not llama,
        mlp_bias="blk.0.ffn_up.bias" in tensors or not llama,
        eos_ids=_end_ids(fields, vocab),
        bos_id=fields.get("tokenizer.ggml.bos_token_id"),
    )


class _Keys:
    """Numbers of the metadata below the architecture's name."""

    def __init__(self, fields: Mapping[str, Any], architecture: str):
        self._fields, self._prefix = fields, f"{architecture}."

    def size(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise ConfigError(f"{self._prefix}{key} is {str(value)[:80]}; allowed: whole numbers from 1")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise ConfigError(f"{self._prefix}{key} is {str(value)[:80]}; allowed: positive numbers")
        return float(value)

    def get(self, key: str, default: Any = None) -> Any:
        value = self._fields.get(self._prefix + key, default)
        if value is None:
            raise ConfigError(f"the file lacks {self._prefix}{key}")
        return value


def _read_scaling(get: _Keys, tensors: Mapping[str, GgufTensor], head_dim: int) -> RopeScaling | None:
    kind = get.get("rope.scaling.type", "none")
    if kind == "linear":
        return LinearScaling(get.real("rope.scaling.factor"))
    if kind != "none":
        raise ConfigError(f"rope.scaling.type is {str(kind)[:80]!r}; allowed: 'none', 'linear'")
    if "rope_freqs.weight" not in tensors:
        return None
    factors = dequantize(tensors["rope_freqs.weight"]).reshape(-1)
    low, high, original = _LLAMA3
    scaling = Llama3Scaling(float(factors.max()), low, high, original)
    base = get.real("rope.freq_base", 10000.0) ** (-np.arange(0, head_dim, 2) / head_dim)
    wanted = base / scaling.apply(base) if np.isfinite(factors).all() and factors.min() > 0 else np.inf
    if factors.shape != base.shape or not np.allclose(wanted, factors, rtol=1e-3):
        raise ConfigError("rope_freqs.weight does not follow the llama3 rule with low 1, high 4, original 8192")
    return scaling


def _end_ids(fields: Mapping[str, Any], vocab: int) -> tuple[int, ...]:
    keys = (f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))
    ids = (fields.get(key) for key in keys)
    return tuple(dict.fromkeys(token for token in ids if type(token) is int and 0 <= token < vocab))


def _shortest(value: float) -> float:
    """1e-05 from the float32 9.999999747378752e-06 that the file holds, as Hugging Face's JSON has it."""
    return float(str(np.float32(value)))


def _licence(fields: Mapping[str, Any]) -> dict[str, str]:
    licence = _text(fields, "general.license")
    return {} if licence is None else {"licence": licence}


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) else None
