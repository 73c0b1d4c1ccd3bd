"""Models as GGUF files for llama.cpp: float32, or its Q8_0.

Names, shapes and the order of the rows of q and k are those of llama.cpp's converter (see `cachequant.assets.gguf`).
`write_gguf` rounds as llama.cpp's own quantizer does, for comparing engines; `export_gguf` writes the very codes that
this library runs with, and their steps, which Q8_0 holds as float16. Tensors are made and written one at a time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from cachequant.assets import cachedir, gguf_tokenizer
from cachequant.assets.gguf import BLOCK
from cachequant.assets.mapped import release
from cachequant.assets.names import gguf_name
from cachequant.assets.store import ModelAsset
from cachequant.checkpoint.layout import quantizer_of
from cachequant.decoder.config import DecoderConfig, LinearScaling
from cachequant.decoder.linear import quantize_matrix
from cachequant.decoder.rope import inverse_frequencies
from cachequant.decoder.weights import matrix
from cachequant.errors import InputError
from cachequant.quantize import Quantized
from cachequant.schemes import Block, Quantizer, Scheme

_F32, _Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0
KINDS = {"f32": (_F32, gguf.LlamaFileType.ALL_F32), "q8_0": (_Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0)}
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """The progress of nobody watching."""


@dataclass(frozen=True)
class _Planned:
    """A tensor of the file before its bytes are made."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        return math.prod(self.shape) // block * size


def write_gguf(asset: ModelAsset, path: str | Path, kind: str) -> None:
    """Write a float32 model, without a vocabulary: for programs that pass token ids.

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
    asset.require_float32()
    (coded, file_type), planned = KINDS[kind], []
    for name, tensor in asset.weights.items():
        used = coded if tensor.ndim == 2 and not tensor.shape[1] % BLOCK and name != "positions.weight" else _F32

        def make(name: str = name, used=used) -> np.ndarray:
            rows = np.ascontiguousarray(_stored(asset.config, name, asset.weights[name]), dtype=np.float32)
            return rows if used == _F32 else gguf.quants.quantize(rows, used)

        planned.append(_Planned(gguf_name(asset.config, name), tensor.shape, used, make))
    _write(asset, Path(path), file_type, planned, {"tokenizer.ggml.model": gguf_tokenizer.NONE})


def export_gguf(asset: ModelAsset, path: str | Path, scheme: Scheme, progress: Progress = _silent) -> bool:
    """Write a model under a scheme, with its vocabulary: the file gives the same codes back, bit for bit.

    Steps are rounded to float16, which changes none of `q8_0` and the head `int8-block32`; one step a row, or a block
    of more than 32 values, is written for each block of 32.

    Parameters
    ----------
    asset : ModelAsset
        A float32 model, or a checkpoint, whose codes are written as they are.
    path : str or Path
        A new file, which appears whole or not at all.
    scheme : Scheme
        Weights, head or both with 8-bit codes whose blocks are multiples of 32, or `fp32`; how inputs are quantized is
        not part of the file.
    progress : callable
        Called with the tensors written and to write.

    Returns
    -------
    bool
        Whether the file has a vocabulary; llama.cpp reads one without it, but takes token ids only.

    Raises
    ------
    InputError
        The file exists, another scheme, a checkpoint of another scheme, matrices whose rows are not whole blocks, or
        (then nothing is left behind) a step that float16 does not hold.
    """
    path = Path(path)
    check_export(asset, path, scheme)
    planned = []
    for name, tensor in asset.weights.items():
        quantizer = quantizer_of(asset.config, scheme, name)
        shape = tensor.codes.shape if isinstance(tensor, Quantized) else tensor.shape

        def make(name: str = name, quantizer=quantizer) -> np.ndarray:
            source = matrix(asset.weights, name, quantizer)
            if quantizer is None:
                return _stored(asset.config, name, source)
            coded = source if isinstance(source, Quantized) else quantize_matrix(source, quantizer)
            steps = _half_steps(name, coded)
            return _blocks(_stored(asset.config, name, coded.codes), _stored(asset.config, name, steps))

        planned.append(_Planned(gguf_name(asset.config, name), shape, _Q8_0 if quantizer else _F32, make))
    coded = any(tensor.kind == _Q8_0 for tensor in planned)
    fields = gguf_tokenizer.describe(asset)
    with cachedir.atomic_file(path) as partial:
        _write(asset, partial, KINDS["q8_0" if coded else "f32"][1], planned, fields, progress)
    return fields["tokenizer.ggml.model"] != gguf_tokenizer.NONE


def check_export(asset: ModelAsset, path: Path, scheme: Scheme) -> None:
    """The refusals of `export_gguf`, before anything is written."""
    if path.exists():
        raise InputError(f"{path} exists; name a new file")
    if scheme.transform or not all(_fits(quantizer) for quantizer in (scheme.weight, scheme.head)):
        raise InputError(
            f"scheme {scheme.name!r} is not what Q8_0 holds; allowed: fp32, q8_0, int8, int8-block32, w8, bfp8, "
            "each with +head"
        )
    if asset.scheme is not None and asset.scheme != scheme:
        raise InputError(
            f"scheme {scheme.name!r}: {asset.name} is a checkpoint quantized as {asset.scheme.name!r}; allowed is that"
        )
    config = asset.config
    widths = {config.width} if scheme.head else set()
    widths |= {config.width, config.attention_width, config.ffn} if scheme.weight else set()
    if odd := sorted(width for width in widths if width % BLOCK):
        raise InputError(f"rows of {odd[0]} values are not whole blocks of {BLOCK}; allowed for this model: fp32")


def permute(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a q or k matrix (or bias), from RoPE on the two halves of each head to RoPE on neighbours."""
    pairs = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, 2, pairs, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _stored(config: DecoderConfig, name: str, tensor: np.ndarray) -> np.ndarray:
    heads = {"q": config.heads, "k": config.kv_heads}.get(name.rsplit(".", 2)[1])
    return permute(tensor, heads) if heads else tensor


def _fits(quantizer: Quantizer | None) -> bool:
    """Whether every block of Q8_0 has one step."""
    return quantizer is None or not isinstance(quantizer.granularity, Block) or not quantizer.granularity.size % BLOCK


def _half_steps(name: str, coded: Quantized) -> np.ndarray:
    """(rows, blocks) float16 steps of the blocks of 32."""
    granularity, steps = coded.quantizer.granularity, coded.steps()
    blocks = coded.codes.shape[1] // BLOCK
    size = granularity.size // BLOCK if isinstance(granularity, Block) else blocks
    with np.errstate(over="ignore"):
        half = steps.astype("<f2")
    if (lost := np.isinf(half) | ((half == 0) & (steps > 0))).any():
        raise InputError(f"{name}: a step of {steps[lost][0]:.3g} is not what Q8_0 holds; allowed: 3e-8 to 65504")
    return np.repeat(half, size, axis=1)[:, :blocks]


def _blocks(codes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """(rows, bytes) uint8 of Q8_0: for every block its float16 step, then its 32 codes."""
    parts = [
        np.ascontiguousarray(steps).view(np.uint8).reshape(*steps.shape, 2),
        codes.reshape(*steps.shape, BLOCK).view(np.uint8),
    ]
    return np.concatenate(parts, axis=2).reshape(len(codes), -1)


def _write(
    asset: ModelAsset,
    path: Path,
    file_type: int,
    planned: list[_Planned],
    fields: dict[str, Any],
    progress: Progress = _silent,
) -> None:
    config = asset.config
    writer = gguf.GGUFWriter(path, config.family)
    writer.add_name(asset.name)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(file_type)
    if file_type != gguf.LlamaFileType.ALL_F32:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if "licence" in asset.origin:
        writer.add_license(asset.origin["licence"])
    _add_config(writer, config)
    for key, value in fields.items():
        adders = {str: writer.add_string, list: writer.add_array, int: writer.add_uint32, bool: writer.add_bool}
        adders[type(value)](key, value)
    if config.rope_scaling is not None and not isinstance(config.rope_scaling, LinearScaling):
        plain = inverse_frequencies(config.head_dim, config.rope_theta, None)
        factors = (plain / config.rope_frequencies()).astype(np.float32)
        planned = [*planned, _Planned("rope_freqs.weight", factors.shape, _F32, lambda: factors)]
    for tensor in planned:
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, tensor.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for done, tensor in enumerate(planned, 1):
        made = tensor.make()
        writer.write_tensor_data(made)
        release(made)
        progress(done, len(planned))
    writer.close()


def _add_config(writer: gguf.GGUFWriter, config: DecoderConfig) -> None:
    writer.add_vocab_size(config.vocab)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
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
