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
TENSORS = ("basis",), ("basis", "feedback")  # what a file may hold
COORDINATES = f"mean, matrix in, matrix out, feedback; signs {SEED}, Walsh-Hadamard; keys with positions"
FIELDS = ("format_version", "model", "model_sha256", "basis", "tag")


class CalibrationError(CachequantError, ValueError):
    """A calibration file that is damaged, was changed, or belongs to another model or basis."""


def save(path: str | Path, asset: ModelAsset, basis: Basis) -> None:
    """Write the basis of a model, whole or not at all."""
    metadata = {
        "format_version": VERSION, "model": asset.name, "model_sha256": asset.sha256, "basis": COORDINATES,
        "tag": basis.tag,
    }  # fmt: skip
    tensors = {"basis": np.ascontiguousarray(basis.array, np.float32)}
    if basis.feedback is not None:
        tensors["feedback"] = basis.feedback
    with cachedir.atomic_file(Path(path).absolute()) as partial:
        writer = TensorWriter(
            partial,
            {name: ("F32", tensor.shape) for name, tensor in tensors.items()},
            metadata | {"sha256": _digest(metadata, tensors)},
        )
        for name, tensor in tensors.items():
            writer.write(name, tensor)
        writer.close()


def open_checked(path: str | Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Metadata and tensors of a file, whatever model it belongs to.

    Raises
    ------
    CalibrationError : truncated, changed, of another version or in other coordinates, or not such a file.
    """
    try:
        file = TensorFile(Path(path))
    except AssetError as error:
        raise CalibrationError(str(error)) from None
    found = file.metadata
    kinds = {info.dtype for info in file.tensors.values()}
    if set(found) != {*FIELDS, "sha256"} or tuple(file.tensors) not in TENSORS or kinds != {"F32"}:
        raise CalibrationError(f"{path}: not a calibration file; `cachequant calibrate` writes one")
    for name, expected in (("format_version", VERSION), ("basis", COORDINATES)):
        if found[name] != expected:
            raise CalibrationError(f"{path}: {name} is {found[name]!r}, this version reads {expected!r}")
    if found["tag"] == PLAIN:
        raise CalibrationError(f"{path}: tag is {PLAIN!r}, which names the basis that is not calibrated")
    tensors = {name: np.array(file.raw(name)) for name in file.tensors}
    if _digest(found, tensors) != found["sha256"]:
        raise CalibrationError(f"{path}: the contents are not those that its sha256 names; it was damaged or changed")
    if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
        raise CalibrationError(f"{path}: the basis holds values that are not finite")
    return found, tensors


def read(path: str | Path, asset: ModelAsset) -> Basis:
    """The basis of a file.

    Raises
    ------
    CalibrationError : see `open_checked`; fitted to another model, or of a shape that does not fit it.
    """
    found, tensors = open_checked(path)
    if found["model_sha256"] != asset.sha256:
        raise CalibrationError(
            f"{path}: fitted to model {found['model']!r} ({found['model_sha256'][:12]}), not to {asset.name!r} "
            f"({asset.sha256[:12]})"
        )
    c = asset.config
    d, heads = c.head_dim, (c.layers, c.kv_heads, 2)
    expected = {"basis": (*heads, 1 + 2 * d, d), "feedback": (*heads, d * (d - 1) // 2)}
    for name, tensor in tensors.items():
        if tensor.shape != expected[name]:
            raise CalibrationError(f"{path}: {name} of shape {tensor.shape}; this model needs {expected[name]}")
    return Basis(tensors["basis"], found["tag"], tensors.get("feedback"))


def _digest(metadata: dict[str, str], tensors: dict[str, np.ndarray]) -> str:
    """sha256 of the metadata but for itself, and of the numbers."""
    head = "\n".join(f"{name}={metadata[name]}" for name in FIELDS)
    digest = hashlib.sha256(head.encode())
    for name, tensor in tensors.items():
        digest.update(name.encode() + tensor.tobytes())
    return digest.hexdigest()
