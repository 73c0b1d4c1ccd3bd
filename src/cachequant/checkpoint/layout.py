"""What a quantized checkpoint holds: names, types and shapes of its tensors, for one model under one scheme.

A quantized matrix `NAME.weight` is stored as `NAME.qweight`, int8 codes as (out, in) in C order whatever the source's
orientation, and `NAME.scales`, (out, blocks), or (1, 1) for one scale a tensor. Everything else is float32 and keeps
its name. `NAME.weight` itself is there, but empty: a reader of plain weights, who would otherwise go on with random
ones after a warning, stops at its shape, and nobody can take codes for floats.
"""

import math
from dataclasses import dataclass

import numpy as np

from cachequant import schemes
from cachequant.assets.names import hf_name
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.weights import tensor_shapes
from cachequant.errors import InputError
from cachequant.quantizers import Quantizer, Row, Tensor
from cachequant.schemes import Scheme

VERSION = 1
NOTE = "cachequant.json"  # version, scheme, source and sha256 of every tensor
GUARD = "weight"  # the empty tensor of a quantized matrix
_STORED = {"float32": "F32", "float16": "F16", "int16": "I16", "int8": "I8"}


@dataclass(frozen=True)
class Stored:
    """A tensor of the file: safetensors' type, and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * {"F32": 4, "F16": 2, "I16": 2, "I8": 1}[self.dtype]


def require_storable(scheme: Scheme) -> None:
    """Refuse schemes that a checkpoint cannot hold.

    Raises
    ------
    InputError
        Nothing is quantized, the scheme is calibrated, or it is not known by its name.
    """
    storable = [s.name for s in schemes.PRESETS.values() if s.weight and not s.calibrated]
    allowed = f"allowed are {', '.join(storable)} and the grid, each with a quantized head"
    if scheme.weight is None:
        raise InputError(f"scheme {scheme.name!r} leaves the layers in float32; {allowed}")
    if scheme.calibrated:
        raise InputError(f"scheme {scheme.name!r} is calibrated, and checkpoints hold no calibration; {allowed}")
    if schemes.get(scheme.name) != scheme:
        raise InputError(f"scheme {scheme.name!r} is not what this name stands for; {allowed}")


def quantizer_of(config: DecoderConfig, scheme: Scheme, name: str) -> Quantizer | None:
    """Format of a canonical tensor; None for those that stay float32."""
    if name == ("embed.weight" if config.tied else "head.weight"):
        return scheme.head
    stem, _, kind = name.rpartition(".")
    return scheme.weight if kind == "weight" and (".attn." in stem or ".mlp." in stem) else None


def parts(config: DecoderConfig, scheme: Scheme, name: str) -> dict[str, Stored]:
    """The stored tensors of one canonical tensor: itself, or codes, scales and the empty guard."""
    shape, quantizer = tensor_shapes(config)[name], quantizer_of(config, scheme, name)
    stored = hf_name(config, name)
    if quantizer is None:
        return {stored: Stored("F32", shape)}
    return {f"{stored.removesuffix('.weight')}.{kind}": found for kind, found in coded(quantizer, *shape).items()}


def coded(quantizer: Quantizer, rows: int, k: int) -> dict[str, Stored]:
    """What is stored of a quantized (rows, k) matrix, by the last part of its name."""
    granularity = quantizer.granularity
    if granularity == Tensor():
        scales = (1, 1)
    else:
        scales = (rows, 1 if granularity == Row() else -(-k // granularity.size))
    return {
        "qweight": Stored("I8", (rows, k)),
        "scales": Stored(_STORED[quantizer.scale_dtype], scales),
        GUARD: Stored("I8", (0,)),
    }


def layout(config: DecoderConfig, scheme: Scheme) -> dict[str, Stored]:
    """Every tensor of a checkpoint, in file order."""
    return {key: stored for name in tensor_shapes(config) for key, stored in parts(config, scheme, name).items()}


def shards(tensors: dict[str, Stored], size: int | None) -> list[dict[str, Stored]]:
    """Cut the tensors, in order, into files of at most `size` bytes; a larger tensor gets a file of its own."""
    files: list[dict[str, Stored]] = [{}]
    room = size
    for name, stored in tensors.items():
        if size is not None and files[-1] and stored.nbytes > room:
            files.append({})
            room = size
        files[-1][name] = stored
        room = None if size is None else room - stored.nbytes
    return files


def tensor_bytes(tensor: np.ndarray) -> memoryview:
    """The bytes of a tensor in C order: what its sha256 is taken over."""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
