"""The note of a quantized checkpoint: version, scheme, source and the sha256 of every tensor.

`cachequant.json` holds it. transformers' `save_pretrained` writes no file of ours, but metadata into each of its own:
there the note is JSON under `KEY`.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cachequant
from cachequant import schemes
from cachequant.assets.hashing import require_sha256
from cachequant.assets.hf_folder import INDEX, weight_files
from cachequant.assets.tensorfile import TensorFile, read_header, strict_json
from cachequant.checkpoint.layout import NOTE, VERSION, require_storable, tensor_bytes
from cachequant.errors import AssetError, InputError
from cachequant.schemes import Scheme

KEY = "cachequant"
_FIELDS = {
    "format_version": int, "writer": str, "scheme": str, "axis": int, "parameters": int, "random": bool,
    "source": dict, "sha256": dict,
}  # fmt: skip


def new_note(
    scheme: Scheme, parameters: int, random: bool, source: Mapping[str, Any], sha256: Mapping[str, str]
) -> dict[str, Any]:
    """The note of a checkpoint that is written now."""
    return {
        "format_version": VERSION,
        "writer": f"cachequant {cachequant.__version__}",
        "scheme": scheme.name,
        "axis": 0,  # of the codes: scales belong to rows, the output channels, or to blocks along them
        "parameters": parameters,
        "random": random,
        "source": dict(source),
        "sha256": dict(sha256),
    }


def read_note(folder: Path) -> dict[str, Any]:
    """The note of a folder, checked.

    Raises
    ------
    AssetError
        It is missing, not JSON, of a newer format, or a field is missing or of the wrong type.
    """
    file = next(file for file in weight_files(folder) if file.name != INDEX)
    text = read_header(file)[1].get(KEY) if file.suffix == ".safetensors" else None
    where = f"{file}: {KEY!r} of the metadata"
    if text is None:
        where = str(folder / NOTE)
        if not (folder / NOTE).exists():
            raise AssetError(f"no file {where}, nor {KEY!r} in the metadata of {file.name}")
        text = (folder / NOTE).read_bytes()
    note = strict_json(text if isinstance(text, bytes) else text.encode(), where)
    version = note.get("format_version")
    if type(version) is int and version > VERSION:
        raise AssetError(f"{where}: format version {version} is newer than {VERSION}, the newest that is read here")
    for name, kind in _FIELDS.items():
        if type(note.get(name)) is not kind:
            raise AssetError(f"{where}: {name} is {note.get(name)!r}; it must be of type {kind.__name__}")
    if version != VERSION or note["axis"] != 0:
        raise AssetError(f"{where}: format version {version} with axis {note['axis']}; allowed: {VERSION} with axis 0")
    if not all(isinstance(value, str) for value in note["sha256"].values()):
        raise AssetError(f"{where}: sha256 must map tensor names to strings")
    return note


def scheme_of(note: Mapping[str, Any], where: str | Path) -> Scheme:
    """The scheme of a note. Raises AssetError if its name is unknown, or no checkpoint can hold it."""
    try:
        scheme = schemes.get(note["scheme"])
        require_storable(scheme)
    except InputError as error:
        raise AssetError(f"{where}: {error}") from error
    if scheme.name != note["scheme"]:
        raise AssetError(f"{where}: scheme {note['scheme']!r} is not a plain name, which is {scheme.name!r}")
    return scheme


def check_hash(name: str, file: TensorFile, hashes: Mapping[str, str]) -> None:
    """Compare a tensor with its hash. Raises AssetError if they differ."""
    found = hashlib.sha256(tensor_bytes(file.raw(name))).hexdigest()
    require_sha256(found, hashes[name], f"{file.path}: tensor {name!r}")
