"""Packed matrices of a model in the cache folder: written by the first `load`, read by the next ones.

A folder `packed/KEY` holds `weights.safetensors`, the bytes that the kernels read, and `source.json`, which says what
they were made from. KEY is a hash of everything that decides a bit of them: the source, the scheme, the calibration,
the kernel sets and the code that quantizes and packs.

The file is mapped and then copied to huge pages (see `kernels.huge_pages`), its own pages given back on the way.
Kernels could read the mapped pages as they are, and processes would share them, but these have 4 kB, and decoding would
be slower.
"""

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import cachequant
from cachequant import kernels
from cachequant.assets import cachedir, store
from cachequant.assets.hashing import require_sha256, sha256_file
from cachequant.assets.mapped import release
from cachequant.assets.store import ModelAsset
from cachequant.assets.tensorfile import TensorFile, TensorWriter
from cachequant.decoder.linear import PackedLinear, head_inputs
from cachequant.errors import AssetError, InputError
from cachequant.kernels import selfcheck, simd
from cachequant.kernels.pack import MEMORY, PackedMatrix
from cachequant.schemes import BITS, Scheme
from cachequant.transform import Basis, basis

VARIABLE, GIGABYTES = "CACHEQUANT_PACKED", 4.0  # how much is kept, all models together
VERSION = 1  # of the files' layout
HEAD = "head"  # the name of the output projection; blocks' matrices are `layers.I.SITE`
_WEIGHTS, _SOURCE = "weights.safetensors", "source.json"
_ALIGNMENT = 64  # bytes; the kernels read whole cache lines
_PIECE = 4 << 20  # bytes that are copied at once
_CODE = ("quantize.py", "quantizers.py", "transform.py")  # what decides the bits, beside the kernels
_CODE += tuple(f"decoder/{name}.py" for name in ("calibration", "forward", "linear", "packed", "weights"))


def budget() -> int:
    """Bytes that packed files may take together: CACHEQUANT_PACKED in GB, 0 keeps none.

    Raises
    ------
    InputError : it is not a number of at least 0.
    """
    text = os.environ.get(VARIABLE, str(GIGABYTES))
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise InputError(f"{VARIABLE}={text!r}: allowed are GB of packed weights to keep, such as {GIGABYTES}, or 0")
    return int(1e9 * size)


class PackedStore:
    """The place of one model under one scheme among the kept files.

    Parameters
    ----------
    asset : of float32 weights; a quantized checkpoint holds codes already, and packing those only moves them.
    scheme : of the decoder.
    ids : that a calibrated scheme measures its inputs on.
    """

    def __init__(self, asset: ModelAsset, scheme: Scheme, ids: Sequence[int] | None = None):
        self._asset, self._scheme = asset, scheme
        wide = scheme.activation is not None and scheme.activation.bits > BITS
        self._key = {
            "version": VERSION,
            "model": store.place(asset.sha256).name,
            "sha256": asset.sha256,
            "format": repr((scheme.weight, scheme.activation, scheme.head, scheme.transform)),
            "ids": ids and hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest(),
            "kernels": [kernels.cache_folder().name, *(selfcheck.active(wide).name for wide in sorted({False, wide}))],
            "code": _code(),
        }
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.folder = cachedir.root() / "packed" / digest[:32]

    def open(self) -> dict[str, PackedLinear] | None:
        """The kept matrices by name; None if there are none that can be trusted."""
        if not self.folder.is_dir():
            return None
        try:
            found = self._read()
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"packed weights in {self.folder} cannot be used and are made again ({error})", stacklevel=2)
            with suppress(OSError):
                cachedir.remove(self.folder)
            return None
        with suppress(OSError):  # a cache folder that belongs to others can still be read
            os.utime(self.folder)  # what was used last stays longest
        return found

    def keep(self, linears: Mapping[str, PackedLinear]) -> None:
        """Write the matrices, unless the disk is full or the folder cannot be written: then the next load packs again.

        What was used longest ago goes where all kept files would take more than `budget`.
        """
        arrays = {name: _arrays(linear, self._scheme.calibrated) for name, linear in linears.items()}
        if (size := sum(a.nbytes for parts in arrays.values() for a in parts.values())) > budget():
            return
        with suppress(OSError):
            cachedir.trim("packed", budget() - size)
            with cachedir.atomic_folder(self.folder) as folder:
                self._write(folder, linears, arrays)

    def _read(self) -> dict[str, PackedLinear]:
        note = json.loads((self.folder / _SOURCE).read_text(encoding="utf-8"))
        if note["key"] != self._key:
            raise AssetError("belongs to something else")
        path = self.folder / _WEIGHTS
        file = TensorFile(path)
        if _state(path) != note["state"]:  # copied, or changed: the state of a file that nobody touched vouches for it
            require_sha256(sha256_file(path), note["weights_sha256"], _WEIGHTS)
        if file.metadata["key"] != self.folder.name:
            raise AssetError(f"{_WEIGHTS} belongs to something else")
        matrices = json.loads(file.metadata["matrices"])
        return {name: self._linear(file, name, layout) for name, layout in matrices.items()}

    def _write(self, folder: Path, linears: Mapping[str, PackedLinear], arrays: Mapping[str, Mapping]) -> None:
        parts = {f"{name}.{part}": array for name, found in arrays.items() for part, array in found.items()}
        shapes = {key: ("U8", (-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT,)) for key, array in parts.items()}
        matrices = {name: _layout(linear, arrays[name]) for name, linear in linears.items()}
        metadata = {"key": self.folder.name, "matrices": json.dumps(matrices)}
        writer = TensorWriter(folder / _WEIGHTS, shapes, metadata)
        for key, array in parts.items():
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            writer.write(key, np.pad(raw, (0, short)) if (short := -raw.size % _ALIGNMENT) else raw)
        note = {
            "name": self._asset.name,
            "scheme": self._scheme.name,
            "writer": f"cachequant {cachequant.__version__}",
            "key": self._key,
            "weights_sha256": writer.close(),
            "state": _state(folder / _WEIGHTS),
        }
        (folder / _SOURCE).write_text(json.dumps(note, ensure_ascii=False), encoding="utf-8")

    def _linear(self, file: TensorFile, name: str, layout: Mapping[str, Any]) -> PackedLinear:
        def part(which: str) -> np.ndarray | None:
            if which not in layout["arrays"]:
                return None
            return _copy(file.raw(f"{name}.{which}"), *layout["arrays"][which])

        n, k, kind, factors = layout["n"], layout["k"], layout["kind"], part("factors")
        transform = self._scheme.transform if name != HEAD else None
        if factors is not None:
            changed = Basis(factors, layout["rotated"])
        else:
            changed = basis(transform, k) if transform else None
        weight = PackedMatrix(
            n, k, part("values"), part("scales"), layout["block"], kind, simd.SETS[layout["kernel_set"]], changed
        )
        activation = head_inputs(self._scheme) if name == HEAD else self._scheme.activation
        return PackedLinear(weight, part("bias"), activation)


def _copy(mapped: np.ndarray, dtype: str, shape: list[int]) -> np.ndarray:
    """An array of a mapped file in memory for matrices; the file's pages are given back on the way."""
    copy = MEMORY.room(tuple(shape), dtype)
    target = copy.reshape(-1).view(np.uint8)
    for start in range(0, target.size, _PIECE):
        piece = mapped[start : min(start + _PIECE, target.size)]
        target[start : start + _PIECE] = piece
        release(piece)
    return copy


def _arrays(linear: PackedLinear, calibrated: bool) -> dict[str, np.ndarray]:
    """What is stored of a matrix; the signs of a rotation are not, all matrices share them."""
    w = linear.weight
    factors = w.basis.factors if calibrated and w.basis else None
    found = {"values": w.values, "scales": w.scales, "bias": linear.bias, "factors": factors}
    return {name: array for name, array in found.items() if array is not None}


def _layout(linear: PackedLinear, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    w = linear.weight
    return {
        "n": w.n,
        "k": w.k,
        "block": w.block,
        "kind": w.kind,
        "kernel_set": w.kernel_set.name,
        "rotated": w.basis.block if w.basis else None,
        "arrays": {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()},
    }


def _state(path: Path) -> list[int]:
    """Size, inode and time of a file: what changes with whoever writes to it."""
    found = path.stat()
    return [found.st_size, found.st_ino, found.st_mtime_ns]


@functools.cache
def _code() -> str:
    """Hash of the modules that decide the bits; those of the kernels have one of their own."""
    root = Path(cachequant.__file__).parent
    return hashlib.sha256(b"\0".join((root / name).read_bytes() for name in _CODE)).hexdigest()[:16]
