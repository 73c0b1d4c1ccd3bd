"""The book's pages as text: which there are, their titles, their code, and the results that they read."""

import re
from functools import cache
from pathlib import Path

import yaml

from cachequant.study import layout

_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```\s*$", re.DOTALL | re.MULTILINE)
_OPTIONS = re.compile(r"\A(?:---\n.*?\n---\n|(?::[^\n]*\n)+)", re.DOTALL)


def listed() -> list[Path]:
    """Pages with code, in the order of the table of contents; the first page comes first."""
    toc = yaml.safe_load((layout.root() / "_toc.yml").read_text(encoding="utf8"))
    names = [toc["root"]] + [c["file"] for part in toc["parts"] for c in part["chapters"]]
    found = [layout.root() / f"{name}.md" for name in names]
    return [p for p in found if p.is_file() and code(p.read_text(encoding="utf8"))]


def title(text: str) -> str:
    """First heading."""
    return re.search(r"^# (.+)$", text, re.MULTILINE).group(1)


def code(text: str) -> str:
    """The code cells as one program, empty if there are none."""
    return "\n".join(_OPTIONS.sub("", cell.group(1)) for cell in _CELL.finditer(text))


def reads(text: str) -> list[str]:
    """Compute notebooks whose results the code cells name, in the order of the study; all for `results.every`."""
    program = code(text)
    if "results.every(" in program:
        return list(layout.notebooks())
    return [name for name in layout.notebooks() if _quoted(name).search(program)]


@cache
def _quoted(name: str) -> re.Pattern[str]:
    return re.compile(rf"""["']{re.escape(name)}["']""")
