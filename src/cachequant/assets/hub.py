"""The Hugging Face hub: from its local cache if possible, else downloaded; without a network it fails within seconds."""

import fnmatch
import functools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cachequant.assets.hashing import require_sha256, sha256_remembered
from cachequant.errors import AssetError

_Answer = TypeVar("_Answer")
_SECONDS = 6.0  # to find out whether the hub answers at all, name look-up included
_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
_PICKLE = ("pytorch_model.bin",)


def download_model(repository: str, revision: str | None) -> Path:
    """Folder of a snapshot with configuration, tokenizer and weights (safetensors, else one pickle).

    Parameters
    ----------
    repository : str
        `owner/name`.
    revision : str or None
        Commit, branch or tag; None takes what the local cache has, else the newest.

    Raises
    ------
    AssetError
        Not in the local cache, and the hub cannot be reached, has no such repository, or HF_HUB_OFFLINE is set.
    """
    import huggingface_hub

    local = functools.partial(huggingface_hub.snapshot_download, repository, revision=revision, local_files_only=True)
    try:
        folder = Path(local())
        if _complete(folder):
            return _checked(folder)
    except (OSError, ValueError):
        pass  # not there: ask the hub
    files = reach(repository, lambda: huggingface_hub.HfApi().list_repo_files(repository, revision=revision))
    weights = (
        _SAFETENSORS if any(fnmatch.fnmatch(file, pattern) for file in files for pattern in _SAFETENSORS) else _PICKLE
    )
    try:
        wanted = [*_MODEL_FILES, *weights]
        return _checked(Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=wanted)))
    except (OSError, ValueError) as error:
        raise AssetError(unreachable(repository, error)) from error


def reach(repository: str, ask: Callable[[], _Answer], seconds: float = _SECONDS) -> _Answer:
    """The answer of `ask`, or an AssetError within `seconds`, however long the network would let it hang."""
    outcome: dict[str, object] = {}

    def run():
        try:
            outcome["answer"] = ask()
        except Exception as error:  # reported by the waiting thread
            outcome["error"] = error

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    if "answer" in outcome:
        return outcome["answer"]
    error = outcome.get("error") or TimeoutError(f"no answer within {seconds:g} s")
    raise AssetError(unreachable(repository, error)) from error


def unreachable(repository: str, error: BaseException) -> str:
    """Message for a repository that could not be had, with the choices."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (
        f"{repository} is not in the local hub cache and could not be fetched ({type(error).__name__}: {reason[:160]}). "
        "Choices: the embedded model smollm2-135m, gpt2-random (speed only), a folder with a checkpoint, a GGUF file, "
        "or HF_HOME pointing to a cache that holds it"
    )


def _complete(folder: Path) -> bool:
    return (folder / "config.json").exists() and any(folder.glob("*.safetensors*")) or (folder / _PICKLE[0]).exists()


def _checked(folder: Path) -> Path:
    """The folder, after comparing large files with their names in the hub's cache, which are their sha256."""
    for file in folder.iterdir():
        stored = file.resolve().name
        if file.is_symlink() and re.fullmatch("[0-9a-f]{64}", stored):
            require_sha256(sha256_remembered(file), stored, str(file))
    return folder
