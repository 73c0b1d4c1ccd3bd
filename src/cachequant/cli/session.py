"""`cachequant session`: look at saved sessions, check them, and generate them again."""

import csv
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cachequant.cli import loading, output
from cachequant.errors import CachequantError, InputError

app = typer.Typer(rich_markup_mode=None)
File = Annotated[Path, typer.Argument(help="Saved session.", show_default=False)]
KeyFile = Annotated[Path | None, typer.Option(help="File with the key that it was signed with.")]
Model = Annotated[
    str | None,
    typer.Option(help="Name, hub id, folder or GGUF file; default: the name in the file.", show_default=False),
]
SchemeName = Annotated[str | None, typer.Option(help="Number format; default: the session's.", show_default=False)]
PagesOf = Annotated[str | None, typer.Option("--kv", help="Page format; default: the session's.", show_default=False)]
CalibrationOf = Annotated[
    str | None,
    typer.Option(
        help="auto, none, or a file of `cachequant calibrate`; default: as the session's.", show_default=False
    ),
]


def register(parent: typer.Typer) -> None:
    epilog = output.example("cachequant session info chat.safetensors")
    parent.add_typer(app, name="session", help="Look at saved sessions, and generate them again.", epilog=epilog)


@app.command(epilog=output.example("cachequant session info chat.safetensors --json"))
def info(file: File, key_file: KeyFile = None, json: output.Json = False) -> None:
    """What a saved session belongs to and holds; its hash is checked."""
    output.show(_describe(file, read_key(key_file)), json, lambda found: output.pairs(list(found.items())))


@app.command(
    epilog=output.example(
        "cachequant session verify chat.safetensors",
        "cachequant session verify chat.safetensors --model ./my-model --calibration my-model.kv",
    )
)
def verify(
    file: File,
    model: Model = None,
    scheme: SchemeName = None,
    kv: PagesOf = None,
    calibration: CalibrationOf = None,
    key_file: KeyFile = None,
    json: output.Json = False,
) -> None:
    """Compute a session again from its token ids and compare every stored bit; exit code 1 if one differs.

    Model, scheme and pages are those that the file names; one that is given and differs is an error.
    """
    with output.quiet(json):
        loaded, session = _load(file, model, (scheme, kv, calibration), key_file, json)
        with session, loaded.session() as fresh:
            if session.stored:
                fresh.extend(session.ids[: session.stored], "none")
            pages = zip(session.pages, fresh.pages, strict=True)
            differing = [i for i, (a, b) in enumerate(pages) if (loaded.pool.read(a) != loaded.pool.read(b)).any()]
            found = {"ok": not differing, "tokens": session.position, "stored": session.stored}
            found["differing_pages"] = differing
    output.show(found, json, lambda found: output.pairs(list(found.items())))
    if differing:
        raise typer.Exit(1)


@app.command(epilog=output.example("cachequant session replay chat.safetensors --from-token 20"))
def replay(
    file: File,
    from_token: Annotated[int, typer.Option(min=1, help="First token that is generated again.")],
    model: Model = None,
    scheme: SchemeName = None,
    kv: PagesOf = None,
    calibration: CalibrationOf = None,
    key_file: KeyFile = None,
    json: output.Json = False,
) -> None:
    """Generate a session's tokens again, greedily, and tell where they differ first; exit code 1 if they do.

    Model, scheme and pages are those that the file names; one that is given and differs is an error.
    """
    with output.quiet(json):
        _, session = _load(file, model, (scheme, kv, calibration), key_file, json)
        with session:
            made = session.replay(from_token)
    found = {"from_token": made.start, "ids": made.ids, "difference": made.difference}
    output.show(found, json, lambda found: output.pairs(list(found.items())))
    if made.difference is not None:
        raise typer.Exit(1)


@app.command(epilog=output.example("cachequant session compare a.safetensors b.safetensors --format md"))
def compare(
    first: File,
    second: Annotated[Path | None, typer.Argument(help="Another one.", show_default=False)] = None,
    format: Annotated[Literal["json", "csv", "md", "tex"], typer.Option(help="Of what is printed.")] = "md",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Saved sessions side by side, and how many tokens two of them share at their beginning; one alone is described."""
    from cachequant.kv import snapshot

    files = [first, second] if second else [first]
    found = [snapshot.read(path) for path in files]
    rows = [(name, *(s.metadata[name] for s in found)) for name in found[0].metadata if name != "sha256"]
    if second:
        a, b = (s.ids for s in found)
        n = min(len(a), len(b))
        differing = (a[:n] != b[:n]).nonzero()[0]
        rows.append(("shared tokens", *[str(int(differing[0]) if len(differing) else n)] * 2))
    table = [("field", *(path.name for path in files)), *rows]
    if json or format == "json":
        output.show({name: values for name, *values in rows}, True, lambda found: None)
    elif format == "csv":
        csv.writer(sys.stdout).writerows(table)
    else:
        typer.echo(_markup(table, format))


def _markup(rows: list[tuple[str, ...]], format: str) -> str:
    """A table in Markdown or LaTeX."""
    if format == "md":
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
    escaped = [[cell.replace("_", "\\_").replace("%", "\\%").replace("&", "\\&") for cell in row] for row in rows]
    lines = [" & ".join(row) + " \\\\" for row in escaped]
    return "\n".join(
        ["\\begin{tabular}{" + "l" * len(rows[0]) + "}", lines[0], "\\hline", *lines[1:], "\\end{tabular}"]
    )


def _describe(file: Path, key: bytes | None) -> dict[str, Any]:
    from cachequant.kv import snapshot

    found = snapshot.read(file, key)
    counts = {"tokens": len(found.ids), "stored": found.stored, "pages": len(found.pages) + len(found.codes)}
    return found.metadata | counts | {"signed": key is not None, "bytes": file.stat().st_size}


def _load(file: Path, model: str | None, given: tuple[str | None, str | None, str | None], key_file, json: bool):
    """Model and session; what is not given of scheme, page format and calibration is that of the file, which is read
    before the weights are packed."""
    import cachequant
    from cachequant import schemes
    from cachequant.kv import formats, snapshot
    from cachequant.kv.basis import PLAIN
    from cachequant.kv.calibration import check_calibration

    scheme, kv, calibration = given
    wanted = {"scheme": scheme and schemes.get(scheme).name, "page_format": kv and formats.get(kv).name}
    if calibration is not None:
        check_calibration(calibration)
    key = read_key(key_file)
    found = snapshot.read(file, key).metadata
    for field, name in wanted.items():
        if name not in (None, found[field], formats.MIXED):  # which bits that is, only the loaded model knows
            raise InputError(f"{file}: {field} is {found[field]!r}, but {name!r} is asked for")
    if calibration is None:
        calibration = "none" if found["calibration"] == PLAIN else "auto"
    model = _known(file, found["model"], json) if model is None else model
    loading.resolve_model(model, json)
    loaded = cachequant.load(model, found["scheme"], kv=found["page_format"], calibration=calibration)
    return loaded, loaded.load_session(file, key)


def _known(file: Path, name: str, json: bool) -> str:
    """The name of a session's model, if it can be found by that."""
    try:
        loading.resolve_model(name, json)
    except CachequantError as error:
        raise InputError(
            f"{file} belongs to model {name!r}, which is not found by its name: give --model ({error})"
        ) from None
    return name


def read_key(path: Path | None) -> bytes | None:
    """The key in a file; None without one. Raises InputError if it cannot be read."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the key file {path}: {error.strerror}") from None
