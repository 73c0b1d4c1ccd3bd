"""`cachequant session`: look at saved sessions, check them, and generate them again."""

import csv
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cachequant.cli import loading, output
from cachequant.errors import InputError

app = typer.Typer(rich_markup_mode=None)
File = Annotated[Path, typer.Argument(help="Saved session.", show_default=False)]
KeyFile = Annotated[Path | None, typer.Option(help="File with the key that it was signed with.")]
Model = Annotated[str, typer.Option(help="Name, hub id, folder or GGUF file.")]
SchemeName = Annotated[str, typer.Option(help="Number format that the session was made with.")]


def register(parent: typer.Typer) -> None:
    epilog = output.example("cachequant session info chat.safetensors")
    parent.add_typer(app, name="session", help="Look at saved sessions, and generate them again.", epilog=epilog)


@app.command(epilog=output.example("cachequant session info chat.safetensors --json"))
def info(file: File, key_file: KeyFile = None, json: output.Json = False) -> None:
    """What a saved session belongs to and holds; its hash is checked."""
    output.show(_describe(file, read_key(key_file)), json, lambda found: output.pairs(list(found.items())))


@app.command(epilog=output.example("cachequant session verify chat.safetensors --model smollm2-135m --scheme int8"))
def verify(
    file: File,
    model: Model = "smollm2-135m",
    scheme: SchemeName = "fp32",
    kv: output.Kv = "fp32",
    calibration: output.Calibration = "auto",
    key_file: KeyFile = None,
    json: output.Json = False,
) -> None:
    """Compute a session again from its token ids and compare every stored bit; exit code 1 if one differs."""
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
    model: Model = "smollm2-135m",
    scheme: SchemeName = "fp32",
    kv: output.Kv = "fp32",
    calibration: output.Calibration = "auto",
    key_file: KeyFile = None,
    json: output.Json = False,
) -> None:
    """Generate a session's tokens again, greedily, and tell where they differ first; exit code 1 if they do."""
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


def _load(file: Path, model: str, made_with: tuple[str, str, str], key_file: Path | None, json: bool):
    """Model and session, made with a scheme, a page format and a calibration; the file is read before the weights are
    packed."""
    import cachequant
    from cachequant import schemes
    from cachequant.kv import formats, snapshot
    from cachequant.kv.calibration import check_calibration

    scheme, kv, calibration = made_with
    schemes.get(scheme), formats.get(kv), check_calibration(calibration)
    key = read_key(key_file)
    snapshot.read(file, key)
    loading.resolve_model(model, json)
    loaded = cachequant.load(model, scheme, kv=kv, calibration=calibration)
    return loaded, loaded.load_session(file, key)


def read_key(path: Path | None) -> bytes | None:
    """The key in a file; None without one. Raises InputError if it cannot be read."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the key file {path}: {error.strerror}") from None
