"""The files of a quantized model in transformers: checked before they are loaded, noted when they are saved."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from cachequant.assets.tensorfile import read_header
from cachequant.checkpoint.layout import NOTE, tensor_bytes
from cachequant.checkpoint.note import KEY, check_hash, new_note, read_note, scheme_of
from cachequant.checkpoint.read import open_tensors
from cachequant.decoder.weights import check_finite
from cachequant.errors import AssetError
from cachequant.hf.config import CacheQuantConfig
from cachequant.schemes import Scheme


def check(paths: Sequence[str] | None, model: PreTrainedModel, config: CacheQuantConfig) -> dict[str, Any]:
    """Check the files of a checkpoint as `cachequant.load` does, but for codes and scales, and return its note.

    Parameters
    ----------
    paths : of the safetensors files.
    model : with its quantized layers in place, before anything is loaded. One without a head takes a part of the file.
    config : of `config.json`.

    Raises
    ------
    AssetError
        No note, a file that is damaged, a tensor that is missing, unexpected, or not what its sha256 says, another
        scheme than in `config.json`.
    NumericsError
        A float32 weight that is NaN or infinite.
    """
    if not paths:
        raise AssetError("a quantized checkpoint is loaded from its files; a state dict of tensors has no note")
    folder = Path(paths[0]).parent
    if not (folder / NOTE).exists() and KEY not in read_header(Path(paths[0]))[1]:
        _fetch_note(model.config)
    note = read_note(folder)
    if scheme_of(note, folder).name != config.scheme:
        raise AssetError(f"{folder}: scheme is {config.scheme!r} in config.json, {note['scheme']!r} in the note")
    tensors, hashes = open_tensors([Path(path) for path in paths], folder), note["sha256"]
    part = f"{model.base_model_prefix}." if model.base_model is model else ""  # as transformers names it in the file
    expected = set(model.state_dict()) - set(model.all_tied_weights_keys)
    if part and not any(name in tensors for name in expected):
        expected = {part + name for name in expected}
    for name in sorted(expected - set(tensors)):
        raise AssetError(f"{folder}: tensor {name!r} is missing")
    for name in [*tensors, *hashes]:
        if name not in expected and name.startswith(part):
            raise AssetError(f"{folder}: unexpected tensor {name!r}")
        if name not in hashes:
            raise AssetError(f"{folder}: tensor {name!r} has no sha256")
    for name, file in tensors.items():
        check_hash(name, file, hashes)
        if file.tensors[name].dtype == "F32" and not name.endswith(".scales"):
            check_finite(name, file.raw(name), file.path.name)
    found = _parameters({name: file.tensors[name].shape for name, file in tensors.items()})
    if note["parameters"] != found:
        raise AssetError(f"{folder}: parameters is {note['parameters']} in the note, the tensors hold {found}")
    return note


def _fetch_note(model_config) -> None:
    """From the hub only files that transformers knows come along; the note is fetched beside them."""
    from transformers.utils import cached_file

    name, revision = model_config.name_or_path, getattr(model_config, "_commit_hash", None)
    cached_file(
        name,
        NOTE,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )


def metadata(state: Mapping[str, torch.Tensor], scheme: Scheme, source: Mapping[str, Any]) -> dict[str, str]:
    """The note of tensors that are going to be saved, as metadata of a safetensors file."""
    hashes = {n: hashlib.sha256(tensor_bytes(tensor.detach().numpy())).hexdigest() for n, tensor in state.items()}
    parameters = _parameters({name: tuple(tensor.shape) for name, tensor in state.items()})
    source = dict(source)
    note = new_note(scheme, parameters, source.pop("random", False), source, hashes)
    return {KEY: json.dumps(note)}


def _parameters(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Values in all tensors but scales."""
    return sum(math.prod(shape) for name, shape in shapes.items() if not name.endswith(".scales"))
