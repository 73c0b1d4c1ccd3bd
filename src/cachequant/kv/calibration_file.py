"""A calibrated basis in a file of its own: safetensors, bound to the model and checked before it is used.

The metadata say which model the basis was fitted to and in which coordinates it is; `sha256` covers them and the
numbers.
"""

import hashlib
from pathlib import Path

import numpy as np

from cachequant.assets import cachedir
from cachequant.assets.store import ModelAsset
from cachequant.assets.tensorfile import TensorFile, TensorWriter
from cachequant.errors import AssetError, CachequantError
from cachequant.kv.basis import PLAIN, Basis
from cachequant.kv.codec import SEED

VERSION = "1"  # raise it when the same metadata stand for other numbers
TENSOR = "basis"
COORDINATES = f"mean, matrix in, matrix out; signs {SEED}, Walsh-Hadamard; keys with positions"
FIELDS = ("format_version", "model", "model_sha256", "basis", "tag")


class CalibrationError(CachequantError, ValueError):
    """A calibration file that is damaged, was changed, or belongs to another model or basis."""


def save(path: str | Path, asset: ModelAsset, basis: Basis) -> None:
    """Write the basis of a model, whole or not at all."""
    metadata = {
        "format_version": VERSION, "model": asset.name, "model_sha256": asset.sha256, "basis": COORDINATES,
        "tag": basis.tag,
    }  # fmt: skip
    array = np.ascontiguousarray(basis.array, np.float32)
    with cachedir.atomic_file(Path(path).absolute()) as partial:
        writer = TensorWriter(partial, {TENSOR: ("F32", array.shape)}, metadata | {"sha256": _digest(metadata, array)})
        writer.write(TENSOR, array)
        writer.close()


def open_checked(path: str | Path) -> tuple[dict[str, str], np.ndarray]:
    """Metadata and numbers of a file, whatever model it belongs to.

    Raises
    ------
    CalibrationError : truncated, changed, of another version or in other coordinates, or not such a file.
    """
    try:
        file = TensorFile(Path(path))
    except AssetError as error:
        raise CalibrationError(str(error)) from None
    found = file.metadata
    if set(found) != {*FIELDS, "sha256"} or list(file.tensors) != [TENSOR] or file.tensors[TENSOR].dtype != "F32":
        raise CalibrationError(f"{path}: not a calibration file; `cachequant calibrate` writes one")
    for name, expected in (("format_version", VERSION), ("basis", COORDINATES)):
        if found[name] != expected:
            raise CalibrationError(f"{path}: {name} is {found[name]!r}, this version reads {expected!r}")
    if found["tag"] == PLAIN:
        raise CalibrationError(f"{path}: tag is {PLAIN!r}, which names the basis that is not calibrated")
    array = file.float32(TENSOR)
    if _digest(found, array) != found["sha256"]:
        raise CalibrationError(f"{path}: the contents are not those that its sha256 names; it was damaged or changed")
    if not np.isfinite(array).all():
        raise CalibrationError(f"{path}: the basis holds values that are not finite")
    return found, array


def read(path: str | Path, asset: ModelAsset) -> Basis:
    """The basis of a file.

    Raises
    ------
    CalibrationError : see `open_checked`; fitted to another model, or of a shape that does not fit it.
    """
    found, array = open_checked(path)
    if found["model_sha256"] != asset.sha256:
        raise CalibrationError(
            f"{path}: fitted to model {found['model']!r} ({found['model_sha256'][:12]}), not to {asset.name!r} "
            f"({asset.sha256[:12]})"
        )
    c = asset.config
    expected = (c.layers, c.kv_heads, 2, 1 + 2 * c.head_dim, c.head_dim)
    if array.shape != expected:
        raise CalibrationError(f"{path}: a basis of shape {array.shape}; this model needs {expected}")
    return Basis(np.ascontiguousarray(array), found["tag"])


def _digest(metadata: dict[str, str], array: np.ndarray) -> str:
    """sha256 of the metadata but for itself, and of the numbers."""
    head = "\n".join(f"{name}={metadata[name]}" for name in FIELDS)
    return hashlib.sha256(head.encode() + np.ascontiguousarray(array).tobytes()).hexdigest()
