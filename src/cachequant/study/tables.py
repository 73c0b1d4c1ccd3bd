"""Numbered tables for the book: what is shown above the reference, under a caption that names what was measured.

Both stand in one cell, so that a table is as wide as with one of them. A table never mixes texts: where the reference
was scored on another text than the result shown, it becomes a second table of its own.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cachequant.errors import ResultError
from cachequant.study.results import Result

Row = dict[str, Any]
LONG_NAME = 20  # letters
MANY_COLUMNS = 8
LEFT, RIGHT = ":--", "--:"
_NUMBER = re.compile(r"[-+−]?[\d,.]+(e[-+]?\d+)?( of \d+)?")
_WHOLE = re.compile(r"(?<=,) (?=[^][, ]+])|(?<=\d) (?=of \d)|(?<=\d of) (?=\d)")  # blanks in `[1, 2]`, `3 of 4`


@dataclass(frozen=True)
class Column:
    """One column: the key of its values in a row, its title with the unit, and how numbers are written.

    A value may be a number, text, None, or a mapping with `low`, `high` and `median` or `value`, which is written with
    its interval. Columns that name a row (`measured=False`) stand once; a measured one also holds the reference, below
    the value where the two differ.
    """

    key: str
    title: str
    format: str = ""
    measured: bool = True


@dataclass(frozen=True)
class Table:
    """A finished table; notebooks and pages show it as MyST, `text` is the same as plain Markdown.

    A cell is a text, or two: the value and the reference that differs from it; `beside` says what the second ones are.
    """

    name: str
    caption: str
    head: list[str]
    align: list[str]
    body: list[list[str | tuple[str, str]]]
    beside: str = ""

    @property
    def text(self) -> str:
        """Caption and pipe table."""
        return f"**{self._titled('In parentheses')}**\n\n{self._pipes('{} ({})')}"

    def _repr_markdown_(self) -> str:
        classes = ["long-names"] * any(len(line[0]) > LONG_NAME for line in self.body)  # they may break
        classes += ["many-columns"] * (len(self.head) >= MANY_COLUMNS)
        options = f":name: {self.name}\n" + (f":class: {' '.join(classes)}\n" if classes else "")
        pipes = self._pipes("{} [{}]{{.beside}}")
        pipes = _WHOLE.sub("\N{NO-BREAK SPACE}", pipes)  # a narrow cell breaks elsewhere
        return f":::{{table}} {self._titled('Small figures')}\n{options}\n{pipes}\n:::\n"

    def _titled(self, where: str) -> str:
        return f"{self.caption} {where}: {self.beside}." if self.beside else self.caption

    def _pipes(self, two: str) -> str:
        body = [[cell if isinstance(cell, str) else two.format(*cell).strip() for cell in line] for line in self.body]
        return "\n".join("| " + " | ".join(line) + " |" for line in [self.head, self.align, *body])


@dataclass(frozen=True)
class Tables:
    """Several tables shown one after the other."""

    parts: tuple[Table, ...]

    def _repr_markdown_(self) -> str:
        return "\n\n".join(part._repr_markdown_() for part in self.parts)


_recorded: list[Table] | None = None


@contextmanager
def recording():
    """Collects every table made inside the block; yields the list."""
    global _recorded
    before, _recorded = _recorded, []
    try:
        yield _recorded
    finally:
        _recorded = before


def table(
    name: str,
    caption: str,
    columns: Sequence[Column],
    rows: Callable[[Result], Sequence[Row]],
    shown: Result,
    reference: Result | None = None,
    models: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
) -> Table | Tables:
    """Makes a numbered table from results; `shown` and `reference` are what `results.both` gives.

    Parameters
    ----------
    name : str
        Label for references, such as `tab-quality`; unique in the book.
    caption : str
        What the table shows. Model, text and machine are added to it.
    columns : sequence of Column
        Those with `measured=False` tell rows apart, and pair the rows of the two results.
    rows : callable
        Takes a Result and gives its rows, each a mapping from column keys to values.
    models, texts : sequences of str, optional
        Names to put into the caption, where the table shows only some of those in the provenance; `()` for none.
    """
    keys = [c.key for c in columns if not c.measured]
    if reference is None:
        made: Table | Tables = _one(name, _caption(caption, shown, models, texts), columns, [(r,) for r in rows(shown)])
    elif shown.texts == reference.texts:
        made = _one(name, _caption(caption, shown, models, texts), columns, _paired(rows(shown), rows(reference), keys))
        if any(isinstance(cell, tuple) for line in made.body for cell in line):
            other = f" ({reference.machine})" if shown.machine != reference.machine else ""
            made = replace(made, beside=f"the reference{other}, where it differs")
    else:
        first = _one(name, _caption(caption, shown, models, texts), columns, [(r,) for r in rows(shown)])
        title = _caption(f"{caption.rstrip('.')}: the published reference.", reference, models, None)
        made = Tables((first, _one(f"{name}-reference", title, columns, [(r,) for r in rows(reference)])))
    return _record(made)


def facts(name: str, caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]], form: str = "") -> Table:
    """A numbered table of plain rows, whose caption is left as it is; columns with text in them stand to the left.

    For what no single result measured, such as definitions or an overview of all results.
    """
    body = [[value(cell, form) for cell in row] for row in rows]
    align = [_side(row[i] for row in rows) for i in range(len(head))]
    return _record(Table(name, caption, list(head), align, body))


def beside(pick: Callable[[Result], Any], shown: Result, reference: Result | None, form: str = ",") -> str:
    """A number for a caption: that of the result shown, and the reference's if it is another one.

    Text like ``1,020 (reference 65,472)``.
    """
    said = [value(pick(result), form) for result in (shown, reference) if result]
    return said[0] if len(set(said)) == 1 else f"{said[0]} (reference {said[1]})"


def value(item: Any, form: str = "") -> str:
    """A cell: `12.3`, `12.3 [11.9, 12.8]` for an interval, text as it is, a dash for None."""
    if item is None:
        return "–"
    if isinstance(item, dict):
        middle = item["median"] if "median" in item else item["value"]
        if item.get("low") is None or item.get("high") is None:
            return value(middle, form)
        return f"{value(middle, form)} [{value(item['low'], form)}, {value(item['high'], form)}]"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, (int, float)):
        return format(item, form).replace("-", "−") if form else f"{item}"
    return str(item).replace("|", "\\|")


def _record(made):
    if _recorded is not None:
        _recorded.extend(made.parts if isinstance(made, Tables) else [made])
    return made


def _one(name: str, caption: str, columns: Sequence[Column], lines: list[tuple[Row | None, ...]]) -> Table:
    body = [[_cell(line, column) for column in columns] for line in lines]
    align = [_side(row.get(c.key) for line in lines for row in line if row) if c.measured else LEFT for c in columns]
    return Table(name, " ".join(caption.split()), [c.title for c in columns], align, body)


def _cell(line: tuple[Row | None, ...], column: Column) -> str | tuple[str, str]:
    """What all results of a line say, or the value and the reference if they say different things.

    A row that only the reference has is in small figures alone.
    """
    sources = line if column.measured else [next(filter(None, line))]
    said = [value(row.get(column.key) if row else None, column.format) for row in sources]
    if len(set(said)) == 1:
        return said[0]
    return ("" if line[0] is None else said[0], said[1])


def _side(values: Iterable[Any]) -> str:
    """Numbers stand to the right, also those written as text, such as `3 of 4`; words to the left."""
    return LEFT if any(isinstance(v, bool | str) and not _NUMBER.fullmatch(str(v)) for v in values) else RIGHT


def _paired(rows: Sequence[Row], others: Sequence[Row], keys: list[str]) -> list[tuple[Row | None, Row | None]]:
    """Rows of both results with equal keys side by side; those of one result only stand alone."""
    by_key = {tuple(row.get(k) for k in keys): row for row in others}
    if len(by_key) != len(others):
        raise ResultError(f"rows are not told apart by {keys}; mark more columns with measured=False")
    paired = [(row, by_key.pop(tuple(row.get(k) for k in keys), None)) for row in rows]
    return paired + [(None, row) for row in by_key.values()]


def _caption(caption: str, result: Result, models: Sequence[str] | None, texts: Sequence[str] | None) -> str:
    what = [", ".join(result.models if models is None else models), ", ".join(result.texts if texts is None else texts)]
    return f"{caption} " + "; ".join([*filter(None, what), result.machine]) + "."
