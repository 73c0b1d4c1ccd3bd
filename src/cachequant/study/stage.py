"""Copies the executed notebooks and result files that the book shows to `book/executed/`."""

import shutil
from pathlib import Path

from cachequant.errors import ResultError
from cachequant.study import layout, results


def stage() -> list[str]:
    """Copies what differs, so that unchanged pages stay as built; returns one line a notebook: what is shown.

    Raises
    ------
    ResultError
        A notebook without a result in any of the sets looked through, or a chosen run that does not exist.
    """
    chosen = results.sets()[0]
    if chosen.startswith("runs/") and not any(layout.set_folder(chosen).glob("*.json")):
        known = sorted(f"runs/{p.name}" for p in (layout.root() / "results" / "runs").glob("*") if p.is_dir())
        raise ResultError(f"no results in results/{chosen}; there are: {', '.join(known) or 'none'}")
    shown = {name: results.load(name) for name in layout.notebooks()}
    folder = layout.root() / "book" / "executed"
    folder.mkdir(exist_ok=True)
    for name, result in shown.items():
        for ending in (".json", ".ipynb"):
            _copy(results.path(name, result.set).with_suffix(ending), folder / f"{name}{ending}")
    for old in folder.iterdir():
        if old.stem not in shown:
            old.unlink()
    return [f"{name}: results/{r.set}{_why(r.set, chosen)}" for name, r in shown.items()]


def _why(shown: str, chosen: str) -> str:
    return "" if shown == chosen else f" (nothing in results/{chosen})"


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        raise ResultError(f"{source.relative_to(layout.root())} is missing beside its result")
    if not target.is_file() or source.read_bytes() != target.read_bytes():
        shutil.copyfile(source, target)
