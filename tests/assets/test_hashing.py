import hashlib
import os

import pytest

from cachequant.assets import hashing
from cachequant.errors import AssetError


def test_a_remembered_hash_is_computed_once_and_again_after_a_change(cache, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    calls = []
    monkeypatch.setattr(
        hashing, "sha256_file", lambda path: calls.append(path) or hashlib.sha256(path.read_bytes()).hexdigest()
    )
    first = hashing.sha256_remembered(file)
    assert hashing.sha256_remembered(file) == first == hashlib.sha256(b"one").hexdigest()
    assert len(calls) == 1
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert hashing.sha256_remembered(file) == hashlib.sha256(b"two").hexdigest()
    assert len(calls) == 2


def test_a_damaged_note_is_ignored(cache, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    digest = hashing.sha256_remembered(file)
    for note in (cache / "hashes").iterdir():
        note.write_text("{")
    assert hashing.sha256_remembered(file) == digest


def test_a_wrong_hash_names_both():
    with pytest.raises(AssetError, match="the file has sha256 aa, expected bb"):
        hashing.require_sha256("aa", "bb", "the file")
