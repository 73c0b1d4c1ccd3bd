"""A model as a plain transformers folder, for tools that know nothing of cachequant."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cachequant.assets import cachedir, models
from cachequant.assets.names import hf_name, is_conv1d
from cachequant.assets.store import ModelAsset
from cachequant.assets.tensorfile import TensorWriter
from cachequant.errors import InputError


def materialize(
    model: str | Path | ModelAsset, folder: str | Path, progress: Callable[[int, int], None] | None = None
) -> Path:
    """Write configuration, float32 safetensors and tokenizer under Hugging Face's names; torch is not needed.

    Parameters
    ----------
    model : str, Path or ModelAsset
        As `models.resolve` takes it, or what that returned.
    folder : str or Path
        New, or empty. It appears whole or not at all.
    progress : callable, optional
        Called with the tensors written and to write.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    InputError
        `folder` exists and is not an empty folder.
    ConfigError
        No Hugging Face model has this configuration.
    """
    folder = new_folder(folder)
    asset = model if isinstance(model, ModelAsset) else models.resolve(model)
    asset.require_float32()
    config = asset.config.to_hf()
    with cachedir.atomic_folder(folder) as partial:
        _write_weights(asset, partial / "model.safetensors", progress)
        write_description(asset, config, partial)
    return folder


def new_folder(folder: str | Path) -> Path:
    """The absolute path of a folder to write. Raises InputError if it exists and is not an empty folder."""
    folder = Path(folder).expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder; name a new one")
    return folder


def write_description(asset: ModelAsset, config: dict[str, Any], folder: Path) -> None:
    """Write what stands beside the weights: configuration, ends of a text, tokenizer."""
    write_json(folder / "config.json", config)
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    write_json(folder / "generation_config.json", {"_from_model_config": True, **ends})
    if asset.tokenizer is not None:
        (folder / "tokenizer.json").write_text(asset.tokenizer.json_text, encoding="utf-8")
        write_json(folder / "tokenizer_config.json", _tokenizer_config(asset))


def _write_weights(asset: ModelAsset, path: Path, progress: Callable[[int, int], None] | None) -> None:
    config, weights = asset.config, asset.weights
    stored = {name: hf_name(config, name) for name in weights}
    turned = {name: weights[name].T if is_conv1d(config, name) else weights[name] for name in weights}
    writer = TensorWriter(path, {stored[name]: ("F32", turned[name].shape) for name in weights}, {"format": "pt"})
    for done, name in enumerate(weights, 1):
        writer.write(stored[name], turned[name])
        if progress:
            progress(done, len(weights))
    writer.close()


def _tokenizer_config(asset: ModelAsset) -> dict[str, Any]:
    tokenizer = asset.tokenizer
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": asset.config.context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": asset.chat_template,
        "bos_token": None if tokenizer.bos_id is None else tokenizer.token(tokenizer.bos_id),
        "eos_token": tokenizer.token(tokenizer.eos_ids[0]) if tokenizer.eos_ids else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
