"""sha256 of files, and checks against pinned ones."""

import hashlib
import json
import os
from pathlib import Path

from cachequant.assets import cachedir
from cachequant.errors import AssetError


def sha256_bytes(data: bytes) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """64 hexadecimal digits; the file is read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_remembered(path: Path) -> str:
    """As `sha256_file`, remembered in the cache folder for a file whose path, size, inode and time stay the same."""
    path = Path(path).resolve()
    status = path.stat()
    identity = [str(path), status.st_size, status.st_ino, status.st_mtime_ns]
    memo = cachedir.folder("hashes") / f"{sha256_bytes(os.fsencode(path))[:32]}.json"
    try:
        remembered = json.loads(memo.read_text())
        if remembered["identity"] == identity:
            return remembered["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not remembered yet, or a damaged note: hash the file
    digest = sha256_file(path)
    with cachedir.atomic_file(memo) as partial:
        partial.write_text(json.dumps({"identity": identity, "sha256": digest}))
    return digest


def require_sha256(found: str, expected: str, what: str) -> None:
    """Compare a hash with its pin.

    Raises
    ------
    AssetError
        They differ.
    """
    if found != expected:
        raise AssetError(f"{what} has sha256 {found}, expected {expected}; it is damaged or not the pinned version")
