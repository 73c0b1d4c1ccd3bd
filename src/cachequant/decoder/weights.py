"""A decoder's weights: which tensors there must be, and a read-only mapping of those that there are.

Names are the same for every source: `embed.weight`, `positions.weight` (gpt2), `layers.{i}.attn_norm`, `.attn.qkv`
(gpt2) or `.attn.q|k|v` (llama), `.attn.o`, `.mlp_norm`, `.mlp.gate|up|down`, `final_norm`, `head.weight` (untied), each
with `.weight` and, where the configuration has one, `.bias`. All are float32 in C order, linear layers as (out, in).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from cachequant.decoder.config import DecoderConfig
from cachequant.errors import AssetError, NumericsError
from cachequant.quantize import Quantized
from cachequant.schemes import Quantizer, Transform


class Weights(Mapping[str, np.ndarray]):
    """Tensors by name, float32 and read-only; memory-mapped when they come from a file.

    Parameters
    ----------
    tensors : mapping of str to array
    sha256 : str
        Identity of the source that they were made from, 64 hexadecimal digits.
    path : Path, optional
        The file that is mapped, None for weights made in memory.
    codes : mapping of str to Quantized, optional
        Matrices that the source held as codes in blocks of 32, which are worth exactly their float32 values.
    """

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        sha256: str,
        path: Path | None = None,
        codes: Mapping[str, Quantized] | None = None,
    ):
        self._tensors, self.sha256, self.path, self._codes = dict(tensors), sha256, path, dict(codes or {})

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def as_codes(self, name: str, quantizer: Quantizer) -> Quantized | None:
        """The source's own codes of a matrix, where `quantizer` has such: nothing is rounded a second time.

        Float16 steps become float32 ones exactly.
        """
        found = self._codes.get(name)
        if found is None or replace(quantizer, half=found.quantizer.half) != found.quantizer:
            return None
        return Quantized(found.codes, found.scales.astype(quantizer.scale_dtype, copy=False), quantizer)

    @property
    def parameters(self) -> int:
        """Number of values in all tensors; a tied head counts once."""
        return sum(tensor.size for tensor in self._tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors.values())


def matrix(
    weights: Mapping[str, np.ndarray], name: str, quantizer: Quantizer | None, transform: Transform | None = None
) -> np.ndarray | Quantized:
    """What a matrix that is to become codes under `quantizer` is made from: its source's codes, else its float32."""
    if quantizer is None or transform or not isinstance(weights, Weights):
        return weights[name]
    found = weights.as_codes(name, quantizer)
    return weights[name] if found is None else found


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `config` needs, in file order."""
    shapes = {"embed.weight": (config.vocab, config.width)}
    norm_bias = config.family == "gpt2"
    if config.rope_theta is None:
        shapes["positions.weight"] = (config.context, config.width)
    for layer in range(config.layers):
        at = f"layers.{layer}"
        shapes |= _norm(f"{at}.attn_norm", config.width, norm_bias)
        if config.family == "gpt2":
            shapes |= _linear(f"{at}.attn.qkv", 3 * config.width, config.width, config.attention_bias)
        else:
            shapes |= _linear(f"{at}.attn.q", config.attention_width, config.width, config.attention_bias)
            shapes |= _linear(f"{at}.attn.k", config.kv_width, config.width, config.attention_bias)
            shapes |= _linear(f"{at}.attn.v", config.kv_width, config.width, config.attention_bias)
        shapes |= _linear(f"{at}.attn.o", config.width, config.attention_width, config.output_bias)
        shapes |= _norm(f"{at}.mlp_norm", config.width, norm_bias)
        if config.family == "llama":
            shapes |= _linear(f"{at}.mlp.gate", config.ffn, config.width, config.mlp_bias)
        shapes |= _linear(f"{at}.mlp.up", config.ffn, config.width, config.mlp_bias)
        shapes |= _linear(f"{at}.mlp.down", config.width, config.ffn, config.mlp_bias)
    shapes |= _norm("final_norm", config.width, norm_bias)
    if not config.tied:
        shapes["head.weight"] = (config.vocab, config.width)
    return shapes


def check_shapes(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Refuse missing tensors, unexpected tensors and wrong shapes.

    Parameters
    ----------
    expected, found : mapping of name to shape
    source : str
        What was read, for the message.

    Raises
    ------
    AssetError
        Naming the first tensor that is wrong, its shape and the shape it should have.
    """
    for name, shape in expected.items():
        if name not in found:
            raise AssetError(f"{source}: tensor {name!r} of shape {shape} is missing")
        if tuple(found[name]) != shape:
            raise AssetError(f"{source}: tensor {name!r} has shape {tuple(found[name])}, the model needs {shape}")
    unexpected = [name for name in found if name not in expected]
    if unexpected:
        raise AssetError(
            f"{source}: unexpected tensor {unexpected[0]!r} ({len(unexpected)} that the model does not have)"
        )


def check_finite(name: str, tensor: np.ndarray, source: str) -> None:
    """Refuse NaN and infinities.

    Raises
    ------
    NumericsError
        Naming the tensor, the value and where it stands.
    """
    with np.errstate(invalid="ignore"):
        total = tensor.sum(dtype=np.float64)
    if np.isfinite(total):
        return  # a finite float64 sum of float32 values proves that all are finite, and needs no temporary array
    bad = ~np.isfinite(tensor)
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    where = "[" + ", ".join(map(str, index)) + "]"
    raise NumericsError(
        f"{source}: {name}{where} is {tensor[index]}; weights must be finite ({int(bad.sum())} are not)"
    )


def _norm(name: str, width: int, bias: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,)} | ({f"{name}.bias": (width,)} if bias else {})


def _linear(name: str, out: int, width: int, bias: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, width)} | ({f"{name}.bias": (out,)} if bias else {})
