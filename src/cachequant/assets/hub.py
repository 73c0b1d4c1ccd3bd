"""The Hugging Face hub: its local cache first, then a download; without a network it fails within seconds."""

import fnmatch
import functools
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from cachequant.assets.hashing import require_sha256, sha256_remembered
from cachequant.errors import AssetError

_Answer = TypeVar("_Answer")
_SECONDS = 6.0  # to find out whether the hub answers at all, name look-up included
_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
_PICKLE = ("pytorch_model.bin",)
_MODEL_CHOICES = (
    "the embedded model smollm2-135m, gpt2-random (speed only), a folder with a checkpoint, a GGUF file, "
    "or HF_HOME pointing to a hub cache that holds it"
)


def model(repository: str, revision: str | None) -> Path:
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

    def wanted(files: Sequence[str]) -> list[str]:
        weights = _SAFETENSORS if _matching(files, _SAFETENSORS) else _PICKLE
        return [*_SMALL_FILES, *weights]

    def complete(files: Sequence[str]) -> bool:
        return "config.json" in files and bool(_matching(files, (*_SAFETENSORS, *_PICKLE)))

    return snapshot(repository, revision, "model", wanted, complete, _MODEL_CHOICES)


def snapshot(
    repository: str,
    revision: str | None,
    kind: str,
    wanted: Callable[[Sequence[str]], list[str]],
    complete: Callable[[Sequence[str]], bool],
    choices: str,
) -> Path:
    """Folder of a snapshot in the hub's cache, with the files that are wanted.

    Parameters
    ----------
    repository, revision
        As in `model`.
    kind : {"model", "dataset"}
    wanted : callable
        File names in the repository to name patterns to download.
    complete : callable
        Whether the file names of a local snapshot are enough.
    choices : str
        For the error message: what else the user can do.
    """
    import huggingface_hub

    download = functools.partial(huggingface_hub.snapshot_download, repository, revision=revision, repo_type=kind)
    try:
        folder = Path(download(local_files_only=True))
        if complete(_files(folder)):
            return _checked(folder)
    except AssetError:
        raise
    except (OSError, ValueError):
        pass  # not there: ask the hub
    try:
        api = huggingface_hub.HfApi()  # repo_info does not retry, unlike the listing of files
        info = answer_within(_SECONDS, lambda: api.repo_info(repository, revision=revision, repo_type=kind))
        files = [sibling.rfilename for sibling in info.siblings or ()]
        return _checked(Path(download(allow_patterns=wanted(files))))
    except AssetError:
        raise
    except Exception as error:  # the hub client and the network below it raise many unrelated types
        reason = (str(error).strip() or "no reason given").splitlines()[0][:160]
        raise AssetError(
            f"{repository} is not in the local hub cache and could not be fetched ({type(error).__name__}: {reason}). "
            f"Choices: {choices}"
        ) from error


def answer_within(seconds: float, ask: Callable[[], _Answer]) -> _Answer:
    """What `ask` returns or raises; TimeoutError after `seconds`, however long the network would let it hang."""
    outcome: dict[str, object] = {}

    def run():
        try:
            outcome["answer"] = ask()
        except Exception as error:  # raised again in the waiting thread
            outcome["error"] = error

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(seconds)
    if "error" in outcome:
        raise outcome["error"]
    if "answer" not in outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome["answer"]


def _matching(files: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return [file for file in files if any(fnmatch.fnmatch(file, pattern) for pattern in patterns)]


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _checked(folder: Path) -> Path:
    """The folder, after comparing large files with their names in the hub's cache, which are their sha256."""
    for file in folder.rglob("*"):
        stored = file.resolve().name
        if file.is_symlink() and re.fullmatch("[0-9a-f]{64}", stored):
            require_sha256(sha256_remembered(file), stored, str(file))
    return folder
