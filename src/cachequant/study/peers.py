"""Engines of other people that the study compares with and that may be missing: `make peers` installs them."""

from collections.abc import Iterable
from importlib.util import find_spec

from cachequant.assets.store import ModelAsset
from cachequant.errors import AssetError
from cachequant.study import peer_files
from cachequant.study.arms import Arm
from cachequant.study.crew import Progress
from cachequant.study.processes import OPEN_SECONDS, Worker, WorkerError

MODULES = {"ctranslate2": "ctranslate2", "llama_cpp": "llama-cpp-python"}  # module: package
NOTEBOOKS = ("11_peers",)  # of which nothing is left without them


def missing() -> list[str]:
    """Packages that are not installed."""
    return [package for module, package in MODULES.items() if find_spec(module) is None]


def require(module: str) -> None:
    """Check that an engine's module is there, without importing it.

    Raises
    ------
    AssetError
        It is not installed.
    """
    if find_spec(module) is None:
        raise AssetError(f"{MODULES[module]} is not installed (make peers)")


def prepare(arms: Iterable[Arm], model: str, asset: ModelAsset, progress: Progress) -> dict[str, str]:
    """Make the files that arms read, each in a process of its own; returns {arm: why it cannot run}."""
    lacking, failed = {}, {}
    for arm in arms:
        if arm.needs and find_spec(arm.needs) is None:
            lacking[arm.name] = f"{MODULES[arm.needs]} is not installed (make peers)"
        elif arm.form in failed:
            lacking[arm.name] = failed[arm.form]
        elif arm.form and not peer_files.path(asset, arm.form).exists():
            progress(0, 1, f"converting {asset.name} for {arm.name}")
            try:
                with Worker(threads=1) as worker:
                    worker.ask("open", OPEN_SECONDS, kind="convert", model=model, form=arm.form)
            except WorkerError as error:
                lacking[arm.name] = failed[arm.form] = str(error)
    return lacking
