"""The cache folder: downloads, converted models, texts and derived files, all of which can be made again.

It lies where the environment variable CACHEQUANT_CACHE says, else in the user's cache folder. Files and folders appear
in it whole: they are written under a temporary name beside their place and then moved.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from cachequant.errors import InputError

# The only sub-folders that `entries` and `clear` look into, whatever else the folder may hold.
KINDS = {
    "downloads": "files out of downloaded packages",
    "models": "weights converted to float32, tokenizers",
    "texts": "texts made from downloads",
    "packed": "weights in the layout that a kernel reads",
    "peers": "weights in the formats of other engines",
    "kernels": "compiled kernels",
    "calibration": "statistics fitted for the KV cache",
    "tuned": "what `cachequant tune` chose for `auto`",
    "hashes": "sha256 of files outside the cache, by size and time",
}
_PARTIAL = ".partial-"


@dataclass(frozen=True)
class Entry:
    """One file or folder of the cache: what kind it is, its name, size in bytes and path."""

    kind: str
    name: str
    bytes: int
    path: Path


def root() -> Path:
    """The cache folder, which need not exist yet."""
    chosen = os.environ.get("CACHEQUANT_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("cachequant"))


def folder(kind: str) -> Path:
    """The sub-folder of one of `KINDS`, created if needed."""
    path = root() / kind
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path; when the block ends without an error, what was written there becomes `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=_PARTIAL + target.name + "-", dir=target.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o666 & ~_umask())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the block ends without an error.

    If `target` has appeared meanwhile, it stays and the new folder is dropped: two processes that convert the same
    source write the same bytes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL + target.name + "-", dir=target.parent))
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        try:
            os.rename(partial, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def entries() -> list[Entry]:
    """Everything in the cache, by kind and name; unfinished files of interrupted runs are listed too."""
    found = []
    for kind in KINDS:
        place = root() / kind
        if place.is_dir():
            found += [Entry(kind, _label(path), _size(path), path) for path in sorted(place.iterdir())]
    return found


def clear(kinds: Sequence[str] | None = None) -> list[Entry]:
    """Remove the entries of the given kinds (all kinds if None) and return them.

    Raises
    ------
    InputError
        A kind that does not exist.
    """
    unknown = sorted(set(kinds or ()) - set(KINDS))
    if unknown:
        raise InputError(f"unknown kind of cache entry {unknown[0]!r}; allowed: {', '.join(KINDS)}")
    removed = [entry for entry in entries() if kinds is None or entry.kind in kinds]
    for entry in removed:
        if entry.path.is_dir() and not entry.path.is_symlink():
            shutil.rmtree(entry.path)
        else:
            entry.path.unlink()
    return removed


def remove(folder: Path) -> None:
    """Take away a folder at once: nobody finds it half empty, and whoever has mapped its files keeps them."""
    gone = Path(tempfile.mkdtemp(prefix=_PARTIAL + folder.name + "-", dir=folder.parent))
    try:
        os.rename(folder, gone)
    except FileNotFoundError:
        pass  # another process was faster
    finally:
        shutil.rmtree(gone, ignore_errors=True)


def trim(kind: str, most: int) -> None:
    """Remove folders of a kind, the one that was used longest ago first, until they take at most `most` bytes.

    A folder's time is that of its last use where its readers touch it.
    """
    kept = [e for e in entries() if e.kind == kind and e.path.is_dir() and not e.path.name.startswith(_PARTIAL)]
    kept.sort(key=lambda entry: entry.path.stat().st_mtime, reverse=True)
    while sum(entry.bytes for entry in kept) > most:
        remove(kept.pop().path)


def _label(path: Path) -> str:
    """The file's or folder's name, after the model's (and scheme's) where a note in the folder gives one."""
    try:
        note = json.loads((path / "source.json").read_text(encoding="utf-8"))
        return " ".join([note["name"], *([note["scheme"]] if "scheme" in note else []), f"({path.name[:12]})"])
    except (OSError, ValueError, KeyError, TypeError):
        return path.name


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(_size(inner) for inner in path.iterdir())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
