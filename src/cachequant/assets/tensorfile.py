"""Reading and writing safetensors files without holding them in memory.

The format is eight bytes of header length, a JSON header, then the tensors' bytes without gaps
(https://huggingface.co/docs/safetensors). Reading is stricter than the reference library, which accepts a name twice.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cachequant.errors import AssetError

_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip
_FLOATS = ("F64", "F32", "F16", "BF16")
_MAX_HEADER = 100_000_000
_ALIGNMENT = 64  # the header is padded with spaces, so that the first tensor starts on a cache line


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: type in the file, shape, first byte (from the start of the file) and number of bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class TensorFile:
    """A safetensors file, memory-mapped.

    Raises
    ------
    AssetError
        Truncated, trailing bytes, gaps or overlaps, duplicate names, unknown types, or not such a file at all.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.tensors, self.metadata = read_header(self.path)
        self._bytes = np.memmap(self.path, dtype=np.uint8, mode="r")

    def raw(self, name: str) -> np.ndarray:
        """The tensor as stored, a view of the file (BF16 as uint16)."""
        info = self.tensors[name]
        piece = self._bytes[info.start : info.start + info.nbytes].view(np.ndarray)
        return piece.view(_DTYPES[info.dtype]).reshape(info.shape)

    def float32(self, name: str) -> np.ndarray:
        """The tensor as float32: a view of the file where it is float32 already, else converted.

        Raises
        ------
        AssetError
            The tensor does not hold floating-point numbers.
        """
        dtype = self.tensors[name].dtype
        if dtype not in _FLOATS:
            raise AssetError(f"{self.path.name}: tensor {name!r} is {dtype}; allowed: {', '.join(_FLOATS)}")
        raw = self.raw(name)
        if dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32, copy=False)


def read_header(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Names with places, and metadata, of a safetensors file, all checked; errors as in `TensorFile`."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > min(size - 8, _MAX_HEADER):
                raise AssetError(
                    f"{path}: truncated, or not a safetensors file (header of {length} bytes, file of {size})"
                )
            text = file.read(length)
    except OSError as error:
        if isinstance(error, AssetError):
            raise
        raise AssetError(f"{path}: {error.strerror or error}") from error
    header = strict_json(text, f"{path}: the header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise AssetError(f"{path}: metadata must map strings to strings")
    tensors = {name: _read_info(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_places(path, tensors, 8 + length, size)
    return tensors, metadata


class TensorWriter:
    """Write a safetensors file one tensor at a time, in the order of `shapes`, hashing it on the way if wanted.

    Parameters
    ----------
    path : Path
        Written directly: use a temporary path (`cachedir.atomic_file`).
    shapes : mapping of name to (dtype name, shape)
    metadata : mapping of str to str
    hashed : bool
        False spares the time, and `close` returns None.
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[str, tuple[int, ...]]],
        metadata: Mapping[str, str],
        hashed: bool = True,
    ):
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        end = 0
        for name, (dtype, shape) in shapes.items():
            start, end = end, end + math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        self._expected, self._file = list(shapes.items()), open(path, "wb")
        self._hash = hashlib.sha256() if hashed else None
        self._put(len(text).to_bytes(8, "little") + text)

    def write(self, name: str, tensor: np.ndarray) -> None:
        """Append the next tensor, converted to the type that was announced for it."""
        expected, (dtype, shape) = self._expected.pop(0)
        assert (name, tensor.shape) == (expected, tuple(shape)), (name, tensor.shape, expected, shape)
        self._put(np.ascontiguousarray(tensor, dtype=_DTYPES[dtype]).reshape(-1).view(np.uint8).data)

    def close(self) -> str | None:
        """Finish the file and return its sha256."""
        assert not self._expected, self._expected[0]
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._hash and self._hash.hexdigest()

    def _put(self, data) -> None:
        self._file.write(data)
        if self._hash:
            self._hash.update(data)


def strict_json(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object in which no name occurs twice; AssetError, which begins with `what`, for anything else."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise AssetError(f"{what} is not JSON ({error})") from error
    except _DuplicateError as error:
        raise AssetError(f"{what} names {error.args[0]!r} twice") from None
    if not isinstance(value, dict):
        raise AssetError(f"{what} is not a JSON object")
    return value


class _DuplicateError(Exception):
    pass


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            raise _DuplicateError(name)
        seen[name] = value
    return seen


def _read_info(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if dtype not in _DTYPES or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ValueError
        if any(type(value) is not int or value < 0 for value in (*shape, start, end)):
            raise ValueError
        if end - start != math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize:
            raise ValueError
    except (TypeError, KeyError, ValueError):
        shown = json.dumps(entry)[:120]
        raise AssetError(f"{path}: the entry of tensor {name!r} is not valid: {shown}") from None
    return TensorInfo(dtype, shape, data_start + start, end - start)


def _check_places(path: Path, tensors: Mapping[str, TensorInfo], data_start: int, size: int) -> None:
    position = data_start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if info.start != position:
            raise AssetError(
                f"{path}: tensor {name!r} starts at byte {info.start}, expected {position} (gap or overlap)"
            )
        position += info.nbytes
    if position != size:
        kind = "truncated" if size < position else "trailing bytes"
        raise AssetError(f"{path}: {kind}: {size} bytes, the header describes {position}")
