"""Folders with a Hugging Face checkpoint: `config.json`, safetensors (else a pickle, weights only), tokenizer."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cachequant.assets.hashing import sha256_remembered
from cachequant.assets.names import hf_name, is_conv1d
from cachequant.assets.store import ModelSource
from cachequant.assets.tensorfile import TensorFile
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.weights import tensor_shapes
from cachequant.errors import AssetError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
CONFIG_FILES = ("config.json", "generation_config.json")
QUANT_METHOD = "cachequant"  # in the `quantization_config` of checkpoints
INDEX, _PICKLE = "model.safetensors.index.json", "pytorch_model.bin"
# Masks and tables that older checkpoints carry along; the decoder computes them.
_BUFFERS = re.compile(r"(^|\.)(h\.\d+\.attn\.(masked_)?bias|layers\.\d+\.self_attn\.rotary_emb\.inv_freq)$")


def open_folder(path: Path, name: str | None = None, origin: Mapping[str, str] | None = None) -> ModelSource:
    """A checkpoint folder as a model source.

    Parameters
    ----------
    path : Path
    name : str, optional
        Shown in tables; the folder's name by default.
    origin : mapping, optional
        Kept with the converted model.

    Raises
    ------
    AssetError
        A file that is missing, damaged or in a form that is not read.
    ConfigError
        A configuration field that is not handled.
    """
    path = Path(path)
    config = read_config(path)
    tensors = _open_tensors(path)
    canonical = {name: _strip(hf_name(config, name)) for name in tensor_shapes(config)}
    stored = _without_prefix(tensors, path)
    used = set(canonical.values())
    skipped = {key for key in stored if _BUFFERS.search(key)} | ({"lm_head.weight"} if config.tied else set())
    shapes = {
        name: _canonical_shape(config, name, stored[key].shape) for name, key in canonical.items() if key in stored
    }
    shapes |= {key: stored[key].shape for key in stored if key not in used | skipped}

    def read(name: str) -> np.ndarray:
        tensor = stored[canonical[name]].float32()
        return tensor.T if is_conv1d(config, name) else tensor

    tokenizer = path / "tokenizer.json"
    return ModelSource(
        name=name or path.resolve().name,
        sha256=identity(path),
        config=config,
        shapes=shapes,
        read=read,
        tokenizer=_read_text(tokenizer) if tokenizer.exists() else None,
        chat_template=read_chat_template(path),
        origin={"folder": path.resolve().name, "format": "huggingface", **(origin or {})},
    )


def read_config(path: Path) -> DecoderConfig:
    """Configuration of a folder; the ends of a text as `generation_config.json` has them, where it does."""
    fields = read_json(path / "config.json")
    if is_checkpoint(fields):
        del fields["quantization_config"]
    config = DecoderConfig.from_hf(fields)
    generation = path / "generation_config.json"
    eos = read_json(generation).get("eos_token_id") if generation.exists() else None
    if eos is None:
        return config
    return dataclasses.replace(config, eos_ids=tuple(eos) if isinstance(eos, list) else (eos,))


def is_checkpoint(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a quantized checkpoint of cachequant's own."""
    quantization = fields.get("quantization_config")
    return isinstance(quantization, dict) and quantization.get("quant_method") == QUANT_METHOD


def identity(path: Path) -> str:
    """sha256 over names and hashes of the files that `open_folder` reads."""
    files = [path / name for name in (*CONFIG_FILES, *TOKENIZER_FILES) if (path / name).exists()]
    listing = [[file.name, sha256_remembered(file)] for file in (*files, *weight_files(path))]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class _Stored:
    """A tensor of the checkpoint: its shape, and how to read it as float32."""

    shape: tuple[int, ...]
    float32: Any


def weight_files(path: Path) -> list[Path]:
    """The files with a folder's weights, the index of shards first where there is one."""
    if (path / "model.safetensors").exists():
        return [path / "model.safetensors"]
    if (path / INDEX).exists():
        names = sorted(set(_weight_map(path).values()))
        return [path / INDEX, *(path / name for name in names)]
    if (path / _PICKLE).exists():
        return [path / _PICKLE]
    choices = f"model.safetensors, {INDEX} with its shards, {_PICKLE}"
    raise AssetError(f"{path} holds no weights; looked for {choices}")


def _open_tensors(path: Path) -> dict[str, _Stored]:
    files = [file for file in weight_files(path) if file.name != INDEX]
    if files[0].name == _PICKLE:
        return _open_pickle(files[0])
    tensors: dict[str, _Stored] = {}
    for file in files:
        opened = TensorFile(file)
        for name, info in opened.tensors.items():
            if name in tensors:
                raise AssetError(f"{file}: tensor {name!r} is also in another file of the checkpoint")
            tensors[name] = _Stored(info.shape, lambda opened=opened, name=name: opened.float32(name))
    if (path / INDEX).exists() and files[0].name != "model.safetensors":
        for name, file in _weight_map(path).items():
            if name not in tensors:
                raise AssetError(f"{path / INDEX}: tensor {name!r} is not in {file}")
    return tensors


def _open_pickle(file: Path) -> dict[str, _Stored]:
    import torch

    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types, all of which mean: not plain weights
        raise AssetError(f"{file}: cannot be read as plain weights ({error})") from error
    return {
        name: _Stored(tuple(tensor.shape), lambda tensor=tensor: tensor.to(torch.float32).numpy())
        for name, tensor in state.items()
    }


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_json(path / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise AssetError(f"{path / INDEX}: weight_map is missing or empty")
    for file in weight_map.values():
        if not isinstance(file, str) or Path(file).name != file or not (path / file).exists():
            raise AssetError(f"{path / INDEX}: shard {file!r} is not a file beside it")
    return weight_map


def _strip(name: str) -> str:
    return name.removeprefix("transformer.").removeprefix("model.")


def _without_prefix(tensors: Mapping[str, _Stored], path: Path) -> dict[str, _Stored]:
    stored = {_strip(name): tensor for name, tensor in tensors.items()}
    if len(stored) != len(tensors):
        raise AssetError(f"{path}: some tensors occur both with and without a prefix (transformer. or model.)")
    return stored


def _canonical_shape(config: DecoderConfig, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(reversed(shape)) if is_conv1d(config, name) else tuple(shape)


def read_chat_template(path: Path) -> str | None:
    """The chat template of a folder, or None."""
    if (path / "chat_template.jinja").exists():
        return _read_text(path / "chat_template.jinja")
    if not (path / "tokenizer_config.json").exists():
        return None
    template = read_json(path / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; AssetError if it holds none."""
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise AssetError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise AssetError(f"{path}: not a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise AssetError(f"no file {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise AssetError(f"{path}: cannot be read ({error})") from error
