"""Converted models in the cache folder: float32 weights, configuration, tokenizer and a note on where they came from.

A folder is named by the source's sha256 and the version of this layout, and is complete when it exists.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cachequant.assets import cachedir
from cachequant.assets.hashing import require_sha256, sha256_file
from cachequant.assets.tensorfile import TensorFile, TensorWriter
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.tokenizer import Tokenizer
from cachequant.decoder.weights import Weights, check_finite, check_shapes, tensor_shapes
from cachequant.errors import AssetError, InputError
from cachequant.quantize import Quantized
from cachequant.schemes import Q8_0, Scheme

_LAYOUT = 2  # raise it when converted files change for the same source
_WEIGHTS, _CONFIG, _TOKENIZER, _SOURCE = "weights.safetensors", "config.json", "tokenizer.json", "source.json"
_CODES_SUFFIX, _SCALES_SUFFIX = ".codes", ".scales"
_CODES = "codes.safetensors"  # matrices that the source held as codes in blocks of 32, beside their float32 values


@dataclass(frozen=True)
class ModelSource:
    """A model as found: what `convert` needs, whatever the format.

    Parameters
    ----------
    name : str
        Shown in tables.
    sha256 : str
        Identity of the source files.
    config : DecoderConfig
    shapes : mapping of canonical name to shape
        Of the tensors that are there.
    read : callable
        Canonical name to float32 array.
    read_codes : callable or None
        Canonical name to the matrix's own codes in blocks of 32 with float16 steps, or None if it has no such codes.
    tokenizer : str or None
        The text of a `tokenizer.json`.
    chat_template : str or None
    origin : mapping
        Where it came from, for the record: file or repository, revision, licence.
    random : bool
        The weights carry no training.
    """

    name: str
    sha256: str
    config: DecoderConfig
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    read_codes: Callable[[str], Quantized | None] | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    origin: Mapping[str, str] | None = None
    random: bool = False


@dataclass(frozen=True)
class ModelAsset:
    """A model ready to be loaded: configuration, mapped weights, tokenizer (None if it has none) and identity."""

    name: str
    config: DecoderConfig
    weights: Weights
    tokenizer: Tokenizer | None
    sha256: str
    random: bool
    chat_template: str | None
    origin: Mapping[str, str]
    scheme: Scheme | None = None  # of weights that are quantized already

    def require_float32(self) -> None:
        """Raise InputError for a model whose weights are quantized."""
        if self.scheme is not None:
            raise InputError(f"{self.name} is quantized, as {self.scheme.name!r}; allowed are float32 models")


def place(sha256: str) -> Path:
    """The folder of a converted model, which need not exist."""
    return cachedir.root() / "models" / f"{sha256[:32]}-v{_LAYOUT}"


def convert(source: ModelSource, progress: Callable[[int, int], None] | None = None) -> Path:
    """Write a source into the cache folder tensor by tensor and return its folder.

    Parameters
    ----------
    source : ModelSource
    progress : callable, optional
        Called with the number of tensors written and to write.

    Raises
    ------
    AssetError
        A tensor that is missing, unexpected or of the wrong shape.
    NumericsError
        A weight that is NaN or infinite.
    """
    shapes = tensor_shapes(source.config)
    check_shapes(shapes, source.shapes, source.name)
    with cachedir.atomic_folder(place(source.sha256)) as folder:
        metadata = {"source_sha256": source.sha256, "finite": "true"}
        writer = TensorWriter(folder / _WEIGHTS, {name: ("F32", shape) for name, shape in shapes.items()}, metadata)
        for done, (name, shape) in enumerate(shapes.items(), 1):
            tensor = source.read(name)
            check_shapes({name: shape}, {name: tensor.shape}, source.name)
            check_finite(name, tensor, source.name)
            writer.write(name, tensor)
            if progress:
                progress(done, len(shapes))
        note = {
            "name": source.name,
            "sha256": source.sha256,
            "weights_sha256": writer.close(),
            "codes_sha256": _write_codes(source, shapes, folder / _CODES),
            "random": source.random,
            "chat_template": source.chat_template,
            "origin": dict(source.origin or {}),
        }
        if source.tokenizer is not None:
            (folder / _TOKENIZER).write_text(source.tokenizer, encoding="utf-8")
        _write_json(folder / _CONFIG, source.config.to_json())
        _write_json(folder / _SOURCE, note)
    return place(source.sha256)


def load(sha256: str, name: str | None = None) -> ModelAsset | None:
    """Map a converted model, or None if it has not been converted.

    Parameters
    ----------
    sha256 : str
        Of the source.
    name : str, optional
        Shown instead of the name that it was converted under.

    Raises
    ------
    AssetError
        The converted files are damaged.
    """
    folder = place(sha256)
    if not folder.is_dir():
        return None
    try:
        note = json.loads((folder / _SOURCE).read_text(encoding="utf-8"))
        config = DecoderConfig.from_json(json.loads((folder / _CONFIG).read_text(encoding="utf-8")))
        file = TensorFile(folder / _WEIGHTS)
        if note["sha256"] != sha256 or file.metadata.get("source_sha256") != sha256:
            raise AssetError(f"{folder}: belongs to another source")
        check_shapes(tensor_shapes(config), {key: info.shape for key, info in file.tensors.items()}, str(folder))
        tensors = {key: file.float32(key) for key in file.tensors}
        codes = _read_codes(folder / _CODES) if note["codes_sha256"] else {}
        weights = Weights(tensors, sha256, folder / _WEIGHTS, codes)
        tokenizer = None
        if (folder / _TOKENIZER).exists():
            tokenizer = Tokenizer.from_file(folder / _TOKENIZER, config.eos_ids, config.bos_id)
        return ModelAsset(
            name or note["name"],
            config,
            weights,
            tokenizer,
            sha256,
            note["random"],
            note["chat_template"],
            note["origin"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AssetError(
            f"the converted model in {folder} is damaged ({error}); remove that folder and try again"
        ) from error


def verify(sha256: str) -> None:
    """Compare the converted weights with the hash that was taken when they were written.

    Raises
    ------
    AssetError
        The model has not been converted, or its weights have changed.
    """
    try:
        note = json.loads((place(sha256) / _SOURCE).read_text(encoding="utf-8"))
        for name, expected in ((_WEIGHTS, note["weights_sha256"]), (_CODES, note["codes_sha256"])):
            if expected:
                require_sha256(sha256_file(place(sha256) / name), expected, str(place(sha256) / name))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AssetError(f"the converted model in {place(sha256)} is damaged ({error}); remove that folder") from error


def load_or_convert(
    sha256: str, open_source: Callable[[], ModelSource], name: str | None = None, progress=None
) -> ModelAsset:
    """The converted model, converting it first if needed."""
    asset = load(sha256, name)
    if asset is None:
        convert(open_source(), progress)
        asset = load(sha256, name)
    return asset


def _write_codes(source: ModelSource, shapes: Mapping[str, tuple[int, ...]], path: Path) -> str | None:
    """The matrices that the source holds as codes; sha256 of the file, or None if there are none and no file."""
    if source.read_codes is None:
        return None
    found = {name: q.scales.shape for name in shapes if (q := source.read_codes(name)) is not None}
    if not found:
        return None
    stored = {}
    for name, scales in found.items():
        stored |= {name + _CODES_SUFFIX: ("I8", shapes[name]), name + _SCALES_SUFFIX: ("F16", scales)}
    writer = TensorWriter(path, stored, {"source_sha256": source.sha256})
    for name in found:
        q = source.read_codes(name)
        writer.write(name + _CODES_SUFFIX, q.codes)
        writer.write(name + _SCALES_SUFFIX, q.scales)
    return writer.close()


def _read_codes(path: Path) -> dict[str, Quantized]:
    file = TensorFile(path)
    names = [key.removesuffix(_CODES_SUFFIX) for key in file.tensors if key.endswith(_CODES_SUFFIX)]
    return {name: Quantized(file.raw(name + _CODES_SUFFIX), file.raw(name + _SCALES_SUFFIX), Q8_0) for name in names}


def _write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
