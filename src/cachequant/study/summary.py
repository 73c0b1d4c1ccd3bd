"""Every table of the book as text, for one set of results: `results/<set>/summary.md`.

The pages are the one place where tables are defined, so their code cells are run here, without a kernel or Sphinx.
"""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

from cachequant.errors import ResultError
from cachequant.study import layout, pages, results, tables

_HEADLINE = re.compile(r"(<!-- headline: [^\n]*-->\n).*(<!-- end of headline -->)", re.DOTALL)


def write(set_name: str) -> Path:
    """Writes the summary of a set and returns its path; pages of which a result is still missing are left out.

    Raises
    ------
    ResultError
        The set has no results.
    """
    folder = layout.set_folder(set_name)
    if not any(folder.glob("*.json")):
        raise ResultError(f"no results in results/{set_name}")
    parts = [f"# Tables of results/{set_name}", _origin(set_name)]
    with _showing(set_name):
        for page in pages.listed():
            text = page.read_text(encoding="utf8")
            complete = all(results.exists(name) for name in pages.reads(text))
            if found := page_tables(page) if complete else []:
                parts += [f"## {pages.title(text)}", *(t.text for t in found)]
    return _replace(folder / "summary.md", "\n\n".join(parts) + "\n")


def readme() -> Path:
    """Writes the tables of the book's first page, from the reference, into README.md."""
    file = layout.root() / "README.md"
    return _replace(file, _HEADLINE.sub(lambda m: f"{m[1]}{headline()}\n{m[2]}", file.read_text(encoding="utf8")))


def headline() -> str:
    """The tables of the book's first page, from the reference, as text."""
    with _showing("reference"):
        return "\n\n".join(t.text for t in page_tables(pages.listed()[0]))


def page_tables(page: Path) -> list[tables.Table]:
    """Runs the code cells of a page and returns the tables that it makes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {"__name__": page.stem, "display": lambda *_: None}
    with tables.recording() as found, contextlib.redirect_stdout(io.StringIO()):
        exec(compile(pages.code(page.read_text(encoding="utf8")), str(page), "exec"), names)
    plt.close("all")
    return found


def _origin(set_name: str) -> str:
    lines = []
    for name in layout.notebooks():
        if results.path(name, set_name).is_file():
            r = results.read(name, set_name)
            profile, start = r.provenance["profile"], r.provenance["start"]
            lines.append(f"- {name}: profile {profile}, {start}, commit {r.commit}, {r.machine}")
    return "\n".join(lines)


def _replace(target: Path, text: str) -> Path:
    temporary = target.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf8")
    os.replace(temporary, target)
    return target


@contextlib.contextmanager
def _showing(set_name: str):
    before = os.environ.get("CACHEQUANT_RESULTS")
    os.environ["CACHEQUANT_RESULTS"] = set_name
    try:
        yield
    finally:
        if before is None:
            del os.environ["CACHEQUANT_RESULTS"]
        else:
            os.environ["CACHEQUANT_RESULTS"] = before
