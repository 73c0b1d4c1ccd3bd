"""GGUF files: configuration from the metadata, tensors through the `gguf` package's NumPy dequantizer.

The format is llama.cpp's (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Its converter permutes the rows
of q and k in the llama architecture, from RoPE on halves (Hugging Face) to RoPE on neighbours; that is undone here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from cachequant.assets.gguf_tokenizer import build_tokenizer
from cachequant.assets.hashing import sha256_remembered
from cachequant.assets.names import gguf_name
from cachequant.assets.store import ModelSource
from cachequant.decoder.config import DecoderConfig, LinearScaling, Llama3Scaling, RopeScaling
from cachequant.decoder.weights import tensor_shapes
from cachequant.errors import AssetError, ConfigError

_ARCHITECTURES = {"gpt2": "gpt2", "llama": "llama", "qwen2": "llama"}
_PLAIN = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
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
        The file is missing, truncated, or holds a tensor type that cannot be dequantized.
    ConfigError
        An architecture, option or tokenizer that is not handled.
    """
    path = Path(path)
    try:
        reader = gguf.GGUFReader(path)
    except FileNotFoundError as error:
        raise AssetError(f"no file {path}") from error
    except Exception as error:  # a damaged file fails anywhere in the package's parser
        raise AssetError(f"{path}: {_damage(path)}") from error
    fields = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if len(tensors) != len(reader.tensors):
        raise AssetError(f"{path}: a tensor name occurs twice")
    config = read_config(fields, tensors)
    names = {canonical: gguf_name(config, canonical) for canonical in tensor_shapes(config)}
    shapes = {canonical: _shape(tensors[stored]) for canonical, stored in names.items() if stored in tensors}
    known = {*names.values(), "rope_freqs.weight"}
    shapes |= {stored: _shape(tensor) for stored, tensor in tensors.items() if stored not in known}

    def read(canonical: str) -> np.ndarray:
        tensor = dequantize(tensors[names[canonical]])
        heads = {"q": config.heads, "k": config.kv_heads}.get(canonical.rsplit(".", 2)[1])
        if heads and fields["general.architecture"] == "llama":
            tensor = unpermute(tensor, heads)
        return tensor

    return ModelSource(
        name=name or path.stem,
        sha256=sha256_remembered(path),
        config=config,
        shapes=shapes,
        read=read,
        tokenizer=build_tokenizer(fields),
        chat_template=fields.get("tokenizer.chat_template"),
        origin={"file": path.name, "format": "gguf", **_licence(fields), **(origin or {})},
    )


def _damage(path: Path) -> str:
    """What is wrong with a file that the package could not read."""
    with open(path, "rb") as file:
        head = file.read(8)
    if not head.startswith(b"GGUF"):
        return "not a GGUF file, which starts with the letters GGUF"
    version, known = int.from_bytes(head[4:], "little"), gguf.gguf_reader.READER_SUPPORTED_VERSIONS
    if len(head) == 8 and version not in known:
        return f"GGUF version {version}; allowed: {', '.join(map(str, known))}"
    return f"the GGUF file is truncated or damaged; it has {path.stat().st_size} bytes"


def dequantize(tensor: "gguf.ReaderTensor") -> np.ndarray:
    """A tensor of the file as float32, shape as in NumPy (slowest axis first).

    Raises
    ------
    AssetError
        Its type has no NumPy dequantizer.
    """
    if tensor.tensor_type in _PLAIN:
        return np.asarray(tensor.data, dtype=np.float32).reshape(_shape(tensor))
    try:
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(_shape(tensor))
    except (NotImplementedError, KeyError) as error:
        raise AssetError(
            f"tensor {tensor.name!r} is of type {tensor.tensor_type.name}, not one that gguf dequantizes"
        ) from error


def unpermute(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a llama q or k matrix (or bias), from neighbouring RoPE pairs back to the two halves of each head."""
    pairs = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, pairs, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def read_config(fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> DecoderConfig:
    """The configuration from metadata; biases and a tied head from the tensors that are there.

    Raises
    ------
    ConfigError
        An architecture or key that is not handled, or a key that is missing.
    """
    architecture = fields.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ConfigError(f"general.architecture is {architecture!r}; allowed: {', '.join(_ARCHITECTURES)}")
    family = _ARCHITECTURES[architecture]
    for key, value in fields.items():
        inner = key.removeprefix(f"{architecture}.")
        if inner != key and inner not in _HANDLED and value:
            raise ConfigError(f"{key} is {str(value)[:80]}, an option that the decoder does not handle")

    def get(key, default=None):
        value = fields.get(f"{architecture}.{key}", default)
        if value is None:
            raise ConfigError(f"the file lacks {architecture}.{key}")
        return value

    if "token_embd.weight" not in tensors:
        raise AssetError("tensor 'token_embd.weight' is missing")
    vocab, width = _shape(tensors["token_embd.weight"])
    heads = int(get("attention.head_count"))
    head_dim = int(get("attention.key_length", width // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if int(get(key, head_dim)) != head_dim:
            raise ConfigError(f"{architecture}.{key} is {get(key)}; allowed: the head size {head_dim}")
    llama = family == "llama"
    epsilon = "attention.layer_norm_rms_epsilon" if llama else "attention.layer_norm_epsilon"
    return DecoderConfig(
        family=family,
        vocab=vocab,
        context=int(get("context_length")),
        width=width,
        layers=int(get("block_count")),
        heads=heads,
        kv_heads=int(get("attention.head_count_kv", heads)),
        head_dim=head_dim,
        ffn=int(get("feed_forward_length")),
        norm_eps=_shortest(get(epsilon)),
        activation="silu" if llama else "gelu_tanh",
        tied="output.weight" not in tensors,
        rope_theta=float(get("rope.freq_base", 10000.0)) if llama else None,
        rope_scaling=_read_scaling(get, tensors, head_dim) if llama else None,
        attention_bias="blk.0.attn_q.bias" in tensors or not llama,
        output_bias="blk.0.attn_output.bias" in tensors or not llama,
        mlp_bias="blk.0.ffn_up.bias" in tensors or not llama,
        eos_ids=_end_ids(fields, vocab),
        bos_id=fields.get("tokenizer.ggml.bos_token_id"),
    )


def _read_scaling(get, tensors: Mapping[str, Any], head_dim: int) -> RopeScaling | None:
    kind = get("rope.scaling.type", "none")
    if kind == "linear":
        return LinearScaling(float(get("rope.scaling.factor")))
    if kind != "none":
        raise ConfigError(f"rope.scaling.type is {kind!r}; allowed: 'none', 'linear'")
    if "rope_freqs.weight" not in tensors:
        return None
    factors = dequantize(tensors["rope_freqs.weight"]).reshape(-1)
    low, high, original = _LLAMA3
    scaling = Llama3Scaling(float(factors.max()), low, high, original)
    base = float(get("rope.freq_base", 10000.0)) ** (-np.arange(0, head_dim, 2) / head_dim)
    if factors.shape != base.shape or not np.allclose(base / scaling.apply(base), factors, rtol=1e-3):
        raise ConfigError("rope_freqs.weight does not follow the llama3 rule with low 1, high 4, original 8192")
    return scaling


def _end_ids(fields: Mapping[str, Any], vocab: int) -> tuple[int, ...]:
    keys = (f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))
    ids = (fields.get(key) for key in keys)
    return tuple(dict.fromkeys(int(token) for token in ids if token is not None and 0 <= int(token) < vocab))


def _shortest(value: float) -> float:
    """1e-05 from the float32 9.999999747378752e-06 that the file holds, as Hugging Face's JSON has it."""
    return float(str(np.float32(value)))


def _shape(tensor: "gguf.ReaderTensor") -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))


def _licence(fields: Mapping[str, Any]) -> dict[str, str]:
    licence = fields.get("general.license")
    return {"licence": licence} if isinstance(licence, str) else {}
