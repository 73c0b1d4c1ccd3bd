"""Reading GGUF files without holding them in memory, no length believed before it was checked.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) is a header, metadata by key, a table of tensors,
and their bytes from an aligned offset. The `gguf` package reads it too, but fails in NumPy on a damaged file; its
tables of types are used here.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from cachequant.errors import AssetError

VERSIONS = (2, 3)
_ALIGNMENT, _MOST_DIMENSIONS = 32, 4
_SCALARS = {
    GGUFValueType.UINT8: "u1", GGUFValueType.INT8: "i1", GGUFValueType.UINT16: "<u2", GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4", GGUFValueType.INT32: "<i4", GGUFValueType.FLOAT32: "<f4", GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8", GGUFValueType.INT64: "<i8", GGUFValueType.FLOAT64: "<f8",
}  # fmt: skip
_LEAST_FIELD, _LEAST_TENSOR = 13, 24  # bytes of the shortest entry of the metadata, and of the table of tensors


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """A tensor of a file: name, ggml's type, shape with the slowest axis first, and its bytes, a view of the file."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    data: np.ndarray


class GgufFile:
    """A GGUF file, memory-mapped.

    fields : metadata by key: numbers, text, or lists of these.
    tensors : by name.

    Raises
    ------
    AssetError
        Missing, truncated, of another version or byte order, a name twice, a type of tensor that ggml does not have, a
        tensor that lies outside of the file or in another one, or not such a file at all.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            self._bytes = np.memmap(self.path, np.uint8, "r").view(np.ndarray)
        except FileNotFoundError as error:
            raise AssetError(f"no file {path}") from error
        except (OSError, ValueError) as error:  # NumPy's words for an empty file
            raise AssetError(f"{path}: not a GGUF file: {getattr(error, 'strerror', None) or 'empty'}") from error
        cursor = _Cursor(self._bytes, str(path))
        if cursor.take(4).tobytes() != b"GGUF":
            raise AssetError(f"{path}: not a GGUF file: it does not begin with 'GGUF'")
        version = cursor.number("<I")
        if version not in VERSIONS:
            order = ", in the byte order of other machines" if version & 0xFFFF == 0 else ""
            raise AssetError(f"{path}: GGUF version {version}{order}; allowed: {', '.join(map(str, VERSIONS))}")
        tensors, fields = cursor.number("<Q"), cursor.number("<Q")
        cursor.expect(tensors * _LEAST_TENSOR + fields * _LEAST_FIELD)
        self.fields = self._fields(cursor, fields)
        self.tensors = self._tensors(cursor, tensors)

    def _fields(self, cursor: "_Cursor", count: int) -> Mapping[str, Any]:
        fields: dict[str, Any] = {}
        for _ in range(count):
            key = cursor.text()
            if key in fields:
                raise AssetError(f"{self.path}: {key} occurs twice in the metadata")
            fields[key] = cursor.value(key, cursor.number("<I"))
        return fields

    def _tensors(self, cursor: "_Cursor", count: int) -> Mapping[str, GgufTensor]:
        entries: dict[str, tuple] = {}
        for _ in range(count):
            name = cursor.text()
            if name in entries:
                raise AssetError(f"{self.path}: tensor {name!r} occurs twice")
            rank = cursor.number("<I")
            if not 1 <= rank <= _MOST_DIMENSIONS:
                raise AssetError(
                    f"{self.path}: tensor {name!r} has {rank} dimensions; allowed: 1 to {_MOST_DIMENSIONS}"
                )
            shape = tuple(cursor.number("<Q") for _ in range(rank))[::-1]
            entries[name] = shape, self._kind(name, cursor.number("<I")), cursor.number("<Q")
        alignment = self.fields.get("general.alignment", _ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise AssetError(f"{self.path}: general.alignment is {alignment!r}; allowed: powers of two")
        start, end, found = -(-cursor.position // alignment) * alignment, 0, {}
        for name, (shape, kind, offset) in sorted(entries.items(), key=lambda item: item[1][2]):
            size = self._size(name, shape, kind)
            if offset % alignment or offset < end:
                raise AssetError(
                    f"{self.path}: tensor {name!r} starts at byte {offset} of the data; expected a multiple of "
                    f"{alignment} that is at least {end} (overlap)"
                )
            end = offset + size
            if start + end > len(self._bytes):
                raise AssetError(
                    f"{self.path}: truncated: tensor {name!r} ends at byte {start + end} of {len(self._bytes)}"
                )
            found[name] = GgufTensor(name, kind, shape, self._bytes[start + offset : start + end])
        return {name: found[name] for name in entries}

    def _kind(self, name: str, number: int) -> GGMLQuantizationType:
        try:
            return GGMLQuantizationType(number)
        except ValueError:
            raise AssetError(f"{self.path}: tensor {name!r} is of type {number}; allowed: {readable()}") from None

    def _size(self, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
        block, nbytes = GGML_QUANT_SIZES[kind]
        if 0 in shape or shape[-1] % block:
            raise AssetError(
                f"{self.path}: tensor {name!r} has shape {shape}; {kind.name} needs rows of a multiple of {block}"
            )
        return math.prod(shape) // block * nbytes


def readable() -> str:
    """The types of tensors that can be read, as text for messages."""
    kinds = [k.name for k in GGMLQuantizationType if k in _PLAIN or k in gguf.quants._type_traits]
    return ", ".join(kinds)


_PLAIN = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2", GGMLQuantizationType.F64: "<f8"}


def dequantize(tensor: GgufTensor) -> np.ndarray:
    """A tensor as float32.

    Raises
    ------
    AssetError
        Its type has no NumPy dequantizer; the message names type and tensor.
    """
    if tensor.kind in _PLAIN:
        return tensor.data.view(_PLAIN[tensor.kind]).astype(np.float32).reshape(tensor.shape)
    rows = tensor.data.reshape(math.prod(tensor.shape[:-1]), -1)
    try:
        with np.errstate(all="ignore"):  # hostile scales; what is not finite is refused with its place later
            return gguf.quants.dequantize(rows, tensor.kind).reshape(tensor.shape)
    except (NotImplementedError, KeyError):  # what the package raises for types that it cannot dequantize
        raise AssetError(f"tensor {tensor.name!r} is of type {tensor.kind.name}; allowed: {readable()}") from None


class _Cursor:
    """Reads on from a position, and refuses what would lie behind the end."""

    def __init__(self, data: np.ndarray, path: str):
        self._data, self._path, self.position = data, path, 0

    def expect(self, count: int) -> None:
        if count > len(self._data) - self.position:
            raise AssetError(
                f"{self._path}: truncated, or not a GGUF file: {count} bytes expected at byte {self.position} of "
                f"{len(self._data)}"
            )

    def take(self, count: int) -> np.ndarray:
        self.expect(count)
        start, self.position = self.position, self.position + count
        return self._data[start : self.position]

    def number(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)).tobytes())[0]

    def text(self) -> str:
        start = self.position
        try:
            return self.take(self.number("<Q")).tobytes().decode("utf-8")
        except UnicodeDecodeError:
            raise AssetError(f"{self._path}: the text at byte {start} is not UTF-8") from None

    def value(self, key: str, kind: int) -> Any:
        """A number, text, or list of these."""
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind == GGUFValueType.ARRAY:
            inner, count = self.number("<I"), self.number("<Q")
            if inner == GGUFValueType.STRING:
                self.expect(8 * count)
                return [self.text() for _ in range(count)]
            return self._numbers(key, inner, count)
        return self._numbers(key, kind, 1)[0]

    def _numbers(self, key: str, kind: int, count: int) -> list:
        if kind not in _SCALARS:
            raise AssetError(f"{self._path}: the value of {key} is of type {kind}, which is not read")
        dtype = np.dtype(_SCALARS[kind])
        raw = self.take(count * dtype.itemsize)
        return (raw != 0).tolist() if dtype.kind == "b" else raw.view(dtype).tolist()
