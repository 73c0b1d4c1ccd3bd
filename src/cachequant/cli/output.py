"""What commands print: one JSON object or text on stdout, progress and errors on stderr."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the kernels; by default one a physical core.")]
Scheme = Annotated[
    str | None, typer.Option(help="Number format: fp32, int8, w8a12, bfp8, ..., auto; default: as stored.")
]
Head = Annotated[str | None, typer.Option(help="Format of the output projection: int8, int8-block32.")]
Kv = Annotated[str, typer.Option(help="Page format of keys and values: fp32, fp16, int8, k4v4, k4v3, k4v4,0-1:k8v8.")]
Calibration = Annotated[
    str,
    typer.Option(help="Basis of coded pages: auto (fitted once a model), none, or a file of `cachequant calibrate`."),
]
Report = Callable[..., None]


def example(*commands: str) -> str:
    """The end of a command's help."""
    return "\n".join(["\b", "Example:" if len(commands) == 1 else "Examples:", *(f"  {c}" for c in commands)])


@contextmanager
def quiet(as_json: bool) -> Iterator[None]:
    """With --json, sends to stderr whatever libraries and child processes print before the object is ready.

    Bars of libraries are switched off where nobody sees them; they look at the environment when they are imported.
    """
    if as_json or not sys.stderr.isatty():
        os.environ |= {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def progress(label: str, as_json: bool) -> Iterator[Report]:
    """Yields `report(done, total, label=None)`, drawn as a bar if stderr is a terminal and --json is not given."""
    if as_json or not sys.stderr.isatty():
        yield lambda done, total, label=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total, label=label: bar.update(task, completed=done, total=total, description=label)


def show(value: dict[str, Any], as_json: bool, human: Callable[[dict[str, Any]], None]) -> None:
    """Prints a result: as JSON, or by `human`."""
    if as_json:
        sys.stdout.write(json.dumps(value, allow_nan=False, ensure_ascii=False) + "\n")
    else:
        human(value)


def table(title: str, columns: list[str], rows: list[list[str]], words: tuple[int, ...] = (0,)) -> None:
    """A table on stdout; columns of `words` are left-aligned, the others are numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left")
    for i, name in enumerate(columns):
        drawn.add_column(name, justify="left" if i in words else "right", no_wrap=not i)
    for row in rows:
        drawn.add_row(*row)
    Console(markup=False, highlight=False).print(drawn)


def pairs(rows: list[tuple[str, Any]]) -> None:
    """Name and value, one a line."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")


def size(count: int) -> str:
    """Bytes for people, in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def note(text: str) -> None:
    """A line for people on stderr."""
    typer.echo(text, err=True)
