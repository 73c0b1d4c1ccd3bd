"""`cachequant cache`: what lies in the cache folder; all of it can be made again."""

from json import loads as parse
from pathlib import Path
from typing import Annotated, Any

import typer

from cachequant.cli import output

app = typer.Typer(rich_markup_mode=None)
KIND = "Only this kind of entry; may be repeated."


def register(parent: typer.Typer) -> None:
    parent.add_typer(
        app,
        name="cache",
        help="List or clear the cache folder (CACHEQUANT_CACHE).",
        no_args_is_help=False,
        epilog=output.example("cachequant cache ls", "cachequant cache clear --kind kernels"),
    )


@app.command("ls", epilog=output.example("cachequant cache ls --json"))
def ls(json: output.Json = False) -> None:
    """List the cache folder by kind, with sizes."""
    from cachequant.assets import cachedir

    output.show(_describe(cachedir.root(), cachedir.entries()), json, _print)


@app.command("clear", epilog=output.example("cachequant cache clear", "cachequant cache clear --kind kernels"))
def clear(kind: Annotated[list[str] | None, typer.Option(help=KIND)] = None, json: output.Json = False) -> None:
    """Empty the cache folder.

    Models and texts are fetched or converted again when they are needed.
    """
    from cachequant.assets import cachedir

    removed = _describe(cachedir.root(), cachedir.clear(kind or None))
    output.show(
        {"folder": removed["folder"], "removed": removed["entries"], "bytes": removed["bytes"]},
        json,
        lambda f: typer.echo(f"{f['folder']}: removed {len(f['removed'])} entries, {output.size(f['bytes'])}"),
    )


def _describe(root: Path, entries: list) -> dict[str, Any]:
    return {
        "folder": str(root),
        "entries": [{"kind": e.kind, "name": e.name, "bytes": e.bytes, **_source(e.path)} for e in entries],
        "bytes": sum(e.bytes for e in entries),
    }


def _source(folder: Path) -> dict[str, str | None]:
    """Model of converted or packed weights, and scheme of packed ones; None for anything else."""
    try:
        note = parse((folder / "source.json").read_text(encoding="utf8"))
        return {"model": note["name"], "scheme": note.get("scheme")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {"model": None, "scheme": None}


def _print(found: dict[str, Any]) -> None:
    rows, notes = [], [e for e in found["entries"] if e["kind"] == "hashes"]
    for entry in found["entries"]:
        if entry not in notes:
            name = " ".join(filter(None, (entry["model"], entry["scheme"]))) or entry["name"]
            rows.append([entry["kind"], name, output.size(entry["bytes"])])
    if notes:
        rows.append(["hashes", f"of {len(notes)} files", output.size(sum(e["bytes"] for e in notes))])
    rows.append(["total", "", output.size(found["bytes"])])
    output.table(found["folder"], ["kind", "name", "size"], rows, words=(0, 1))
