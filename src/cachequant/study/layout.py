"""Where things are in a clone: its root, the compute notebooks, the profiles and the sets of results."""

import re
from pathlib import Path

from cachequant.errors import ParameterError, ResultError

_RUN = re.compile(r"runs/\w[\w.-]*")


def root() -> Path:
    """Top folder of the clone: the nearest one above the working directory, else above this file.

    Raises
    ------
    ResultError
        Neither lies inside a clone of the project.
    """
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            if (folder / "_toc.yml").is_file() and (folder / "notebooks" / "profiles").is_dir():
                return folder
    raise ResultError(
        f"{Path.cwd()} is not inside a clone of cachequant: no _toc.yml with notebooks/profiles beside it"
    )


def notebooks() -> dict[str, Path]:
    """Compute notebooks by name, in the order of the study."""
    return {p.stem: p for p in sorted((root() / "notebooks").glob("[0-9]*.py"))}


def notebook(name: str) -> Path:
    """Source of the compute notebook `name`; `05_quality_grid`, `05` or a path to the file."""
    known = notebooks()
    wanted = Path(name).stem if name.endswith(".py") else name
    matches = [n for n in known if n == wanted or n.partition("_")[0] == wanted]
    if len(matches) != 1:
        raise ParameterError(f"unknown notebook {name!r}; known: {', '.join(known)}")
    return known[matches[0]]


def profiles() -> list[str]:
    """Names of the profiles that exist."""
    return sorted(p.stem for p in (root() / "notebooks" / "profiles").glob("*.yaml"))


def set_folder(name: str) -> Path:
    """Folder of a set of results: `local`, `reference` or `runs/NAME`."""
    if name not in ("local", "reference") and not _RUN.fullmatch(name):
        raise ResultError(
            f"unknown set of results {name!r}; allowed: local, reference, runs/NAME (letters, digits, . _ -)"
        )
    return root() / "results" / name
