"""Open a quantized checkpoint: memory-mapped, and refused unless everything that it promises holds."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cachequant import schemes
from cachequant.assets.hashing import require_sha256
from cachequant.assets.hf_folder import INDEX, is_checkpoint, read_chat_template, read_config, read_json, weight_files
from cachequant.assets.mapped import release
from cachequant.assets.store import ModelAsset
from cachequant.assets.tensorfile import TensorFile, strict_json
from cachequant.checkpoint.invariants import check_quantized
from cachequant.checkpoint.layout import NOTE, VERSION, Stored, layout, parts, quantizer_of, require_storable
from cachequant.checkpoint.layout import tensor_bytes as bytes_of
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.tokenizer import Tokenizer
from cachequant.decoder.weights import Weights, check_finite, tensor_shapes
from cachequant.errors import AssetError, InputError
from cachequant.quantize import Quantized
from cachequant.schemes import Scheme

_FIELDS = {
    "format_version": int, "writer": str, "scheme": str, "axis": int, "parameters": int, "random": bool,
    "source": dict, "sha256": dict,
}  # fmt: skip


def read_checkpoint(folder: str | Path) -> ModelAsset:
    """A checkpoint as a model whose matrices are codes, views of its files.

    Raises
    ------
    AssetError
        A file that is missing, truncated or altered; a tensor that is missing, unexpected, of the wrong type or shape,
        or whose codes and scales break the format; a newer format. The message names the tensor and the reason.
    NumericsError
        A float32 weight that is NaN or infinite.
    ConfigError
        A configuration that the decoder does not handle.
    """
    folder = Path(folder)
    note = _read_note(folder)
    config, scheme = read_config(folder), _scheme(folder, note)
    _check_config(folder, note)
    tensors = _open(folder)
    expected = layout(config, scheme)
    _check_names(folder, expected, {name: file.tensors[name] for name, file in tensors.items()}, note["sha256"])
    weights = {name: _tensor(config, scheme, name, tensors, note["sha256"]) for name in tensor_shapes(config)}
    mapped = Weights(weights, _identity(folder, note))
    if note["parameters"] != mapped.parameters:
        raise AssetError(f"{folder / NOTE}: parameters is {note['parameters']}, the tensors hold {mapped.parameters}")
    tokenizer = folder / "tokenizer.json"
    return ModelAsset(
        name=str(note["source"].get("name", folder.resolve().name)),
        config=config,
        weights=mapped,
        tokenizer=Tokenizer.from_file(tokenizer, config.eos_ids, config.bos_id) if tokenizer.exists() else None,
        sha256=mapped.sha256,
        random=note["random"],
        chat_template=read_chat_template(folder),
        origin=note["source"],
        scheme=scheme,
    )


def _read_note(folder: Path) -> dict[str, Any]:
    path = folder / NOTE
    try:
        text = path.read_bytes()
    except OSError as error:
        raise AssetError(f"{path}: {error.strerror or error}") from error
    note = strict_json(text, str(path))
    version = note.get("format_version")
    if type(version) is int and version > VERSION:
        raise AssetError(f"{path}: format version {version} is newer than {VERSION}, the newest that is read here")
    for name, kind in _FIELDS.items():
        if type(note.get(name)) is not kind:
            raise AssetError(f"{path}: {name} is {note.get(name)!r}; it must be of type {kind.__name__}")
    if version != VERSION or note["axis"] != 0:
        raise AssetError(f"{path}: format version {version} with axis {note['axis']}; allowed: {VERSION} with axis 0")
    if not all(isinstance(value, str) for value in note["sha256"].values()):
        raise AssetError(f"{path}: sha256 must map tensor names to strings")
    return note


def _scheme(folder: Path, note: Mapping[str, Any]) -> Scheme:
    try:
        scheme = schemes.get(note["scheme"])
        require_storable(scheme)
    except InputError as error:
        raise AssetError(f"{folder / NOTE}: {error}") from error
    if scheme.name != note["scheme"]:
        raise AssetError(f"{folder / NOTE}: scheme {note['scheme']!r} is not a plain name, which is {scheme.name!r}")
    return scheme


def _check_config(folder: Path, note: Mapping[str, Any]) -> None:
    fields = read_json(folder / "config.json")
    if not is_checkpoint(fields):
        raise AssetError(f"{folder / 'config.json'}: its quantization_config is not that of a checkpoint")
    stated = fields["quantization_config"]
    for name in ("format_version", "scheme"):
        if stated.get(name) != note[name]:
            raise AssetError(f"{folder}: {name} is {stated.get(name)!r} in config.json, {note[name]!r} in {NOTE}")


def _open(folder: Path) -> dict[str, TensorFile]:
    """The file of every tensor."""
    tensors: dict[str, TensorFile] = {}
    files = weight_files(folder)
    for path in files:
        if path.name == INDEX:
            continue
        if path.suffix != ".safetensors":
            raise AssetError(f"{path}: checkpoints hold their weights in safetensors files")
        file = TensorFile(path)
        for name in file.tensors:
            if name in tensors:
                raise AssetError(f"{path}: tensor {name!r} is also in {tensors[name].path.name}")
            tensors[name] = file
    if files[0].name == INDEX:
        for name, shard in read_json(folder / INDEX)["weight_map"].items():
            if name not in tensors or tensors[name].path.name != shard:
                raise AssetError(f"{folder / INDEX}: tensor {name!r} is not in {shard}")
    return tensors


def _check_names(
    folder: Path, expected: Mapping[str, Stored], found: Mapping[str, Any], hashes: Mapping[str, str]
) -> None:
    for name, stored in expected.items():
        if name not in found:
            plain = name.removesuffix(".qweight") + ".weight"
            mixed = f"; {plain!r} is there: a layer of another precision" if plain in found else ""
            raise AssetError(f"{folder}: tensor {name!r} is missing{mixed}")
        if found[name].dtype != stored.dtype:
            raise AssetError(f"{folder}: tensor {name!r} is {found[name].dtype}; the scheme stores {stored.dtype}")
        if found[name].shape != stored.shape:
            raise AssetError(f"{folder}: tensor {name!r} has shape {found[name].shape}, the model needs {stored.shape}")
    for name in [*found, *hashes]:
        if name not in expected:
            raise AssetError(f"{folder}: unexpected tensor {name!r}")
        if name not in hashes:
            raise AssetError(f"{folder / NOTE}: tensor {name!r} has no sha256")


def _tensor(
    config: DecoderConfig, scheme: Scheme, name: str, tensors: Mapping[str, TensorFile], hashes: Mapping[str, str]
) -> np.ndarray | Quantized:
    """One canonical tensor, checked; its pages are given back, so that a model is never in memory twice."""
    keys, quantizer = list(parts(config, scheme, name)), quantizer_of(config, scheme, name)
    arrays = [tensors[key].raw(key) for key in keys]
    for key, array in zip(keys, arrays, strict=True):
        found = hashlib.sha256(bytes_of(array)).hexdigest()
        require_sha256(found, hashes[key], f"{tensors[key].path}: tensor {key!r}")
    if quantizer is None:
        check_finite(keys[0], arrays[0], tensors[keys[0]].path.name)
    else:
        check_quantized(Quantized(*arrays, quantizer), *keys)
    for array in arrays:
        release(array)
    return arrays[0] if quantizer is None else Quantized(*arrays, quantizer)


def _identity(folder: Path, note: Mapping[str, Any]) -> str:
    """sha256 over the tensors' hashes, the scheme and the configuration."""
    stated = [note["scheme"], sorted(note["sha256"].items()), read_json(folder / "config.json")]
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
