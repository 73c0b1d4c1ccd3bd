"""Models as GGUF files for llama.cpp: float32, or its Q8_0, from the weights that every other arm runs with.

Names, shapes and the order of the rows of q and k are those of llama.cpp's converter (see `cachequant.assets.gguf`).
The file holds no vocabulary: it is for programs that pass token ids.
"""

from pathlib import Path

import gguf
import numpy as np

from cachequant.assets.names import gguf_name
from cachequant.assets.store import ModelAsset
from cachequant.decoder.config import DecoderConfig, LinearScaling
from cachequant.decoder.rope import inverse_frequencies
from cachequant.errors import InputError

_F32, _Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0
KINDS = {"f32": (_F32, gguf.LlamaFileType.ALL_F32), "q8_0": (_Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0)}
BLOCK = 32  # columns that share a scale in Q8_0


def write_gguf(asset: ModelAsset, path: str | Path, kind: str) -> None:
    """Write a model.

    Parameters
    ----------
    asset : ModelAsset
    path : str or Path
        An existing file is overwritten.
    kind : {"f32", "q8_0"}
        q8_0 rounds every matrix, the embedding among them, as llama.cpp's own quantizer does: blocks of 32 along the
        row, 8-bit codes and a float16 scale. Positions, and matrices whose rows are not whole blocks, stay float32.

    Raises
    ------
    InputError
        Another kind, or a quantized model.
    """
    if kind not in KINDS:
        raise InputError(f"unknown kind of GGUF file {kind!r}; allowed: {', '.join(KINDS)}")
    if asset.scheme is not None:
        raise InputError(f"{asset.name} is quantized, as {asset.scheme.name!r}; allowed are float32 models")
    config, (coded, file_type) = asset.config, KINDS[kind]
    writer = gguf.GGUFWriter(path, config.family)
    writer.add_name(asset.name)
    writer.add_file_type(file_type)
    _add_config(writer, config)
    for name in asset.weights:
        tensor = np.ascontiguousarray(_stored(config, name, asset.weights[name]), dtype=np.float32)
        codes = tensor.ndim == 2 and not tensor.shape[1] % BLOCK and name != "positions.weight"
        used = coded if codes else _F32
        raw = tensor if used == _F32 else gguf.quants.quantize(tensor, used)
        writer.add_tensor(gguf_name(config, name), raw, raw_dtype=used)
    if config.rope_scaling is not None and not isinstance(config.rope_scaling, LinearScaling):
        plain = inverse_frequencies(config.head_dim, config.rope_theta, None)
        writer.add_tensor("rope_freqs.weight", (plain / config.rope_frequencies()).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permute(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a q or k matrix (or bias), from RoPE on the two halves of each head to RoPE on neighbours."""
    pairs = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, 2, pairs, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _stored(config: DecoderConfig, name: str, tensor: np.ndarray) -> np.ndarray:
    heads = {"q": config.heads, "k": config.kv_heads}.get(name.rsplit(".", 2)[1])
    return permute(tensor, heads) if heads else tensor


def _add_config(writer: gguf.GGUFWriter, config: DecoderConfig) -> None:
    writer.add_vocab_size(config.vocab)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_tokenizer_model("none")
    if config.family == "gpt2":
        writer.add_layer_norm_eps(config.norm_eps)
        return
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    if isinstance(config.rope_scaling, LinearScaling):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_scaling.factor)
