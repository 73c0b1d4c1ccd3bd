"""Open a quantized checkpoint: memory-mapped, and refused unless everything that it promises holds."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cachequant.assets.hf_folder import INDEX, is_checkpoint, read_chat_template, read_config, read_json, weight_files
from cachequant.assets.mapped import release
from cachequant.assets.store import ModelAsset
from cachequant.assets.tensorfile import TensorFile
from cachequant.checkpoint.invariants import check_quantized
from cachequant.checkpoint.layout import NOTE, Stored, layout, parts, quantizer_of
from cachequant.checkpoint.note import check_hash, read_note, scheme_of
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.tokenizer import Tokenizer
from cachequant.decoder.weights import Weights, check_finite, tensor_shapes
from cachequant.errors import AssetError
from cachequant.quantize import Quantized
from cachequant.schemes import Scheme


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
    note = read_note(folder)
    config, scheme = read_config(folder), scheme_of(note, folder / NOTE)
    _check_config(folder, note)
    tensors = open_tensors(weight_files(folder), folder)
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


def _check_config(folder: Path, note: Mapping[str, Any]) -> None:
    fields = read_json(folder / "config.json")
    if not is_checkpoint(fields):
        raise AssetError(f"{folder / 'config.json'}: its quantization_config is not that of a checkpoint")
    stated = fields["quantization_config"]
    kept = stated.get("modules_to_not_convert")
    if kept:
        raise AssetError(
            f"{folder}: modules_to_not_convert is {kept!r}: layers of two precisions; transformers loads this "
            "checkpoint, with cachequant.hf imported, and cachequant's own decoder takes those without such modules"
        )
    for name in ("format_version", "scheme"):
        if stated.get(name) != note[name]:
            raise AssetError(f"{folder}: {name} is {stated.get(name)!r} in config.json, {note[name]!r} in {NOTE}")


def open_tensors(files: Sequence[Path], folder: Path) -> dict[str, TensorFile]:
    """The file of every tensor.

    Raises
    ------
    AssetError
        A file that is damaged or not safetensors, a tensor in two files, an index that does not fit.
    """
    tensors: dict[str, TensorFile] = {}
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
            mixed = ""
            if plain != name and plain in found and found[plain].shape != expected[plain].shape:
                mixed = f"; {plain!r} is there: a layer of another precision"
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
    for key in keys:
        check_hash(key, tensors[key], hashes)
    if quantizer is None:
        check_finite(keys[0], arrays[0], tensors[keys[0]].path.name)
        found = arrays[0]
    else:
        found = Quantized(*arrays[:2], quantizer)
        check_quantized(found, *keys[:2])
    for array in arrays:
        release(array)
    return found


def _identity(folder: Path, note: Mapping[str, Any]) -> str:
    """sha256 over the tensors' hashes, the scheme and the configuration."""
    stated = [note["scheme"], sorted(note["sha256"].items()), read_json(folder / "config.json")]
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()
