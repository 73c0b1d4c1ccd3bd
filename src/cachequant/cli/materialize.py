"""`cachequant materialize`: a model as a plain transformers folder, for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from cachequant.cli import output


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example("cachequant materialize smollm2-135m ./smollm2-fp32"))(materialize)


def materialize(
    model: Annotated[str, typer.Argument(help="Name, hub id, folder or GGUF file.")],
    folder: Annotated[Path, typer.Argument(help="New folder to write.")],
    json: output.Json = False,
) -> None:
    """Write a model as a transformers folder.

    Float32 safetensors, configuration and tokenizer, for other tools.
    """
    from cachequant.assets import materialize as assets

    with output.quiet(json), output.progress("writing tensors", json) as report:
        assets.materialize(model, folder, progress=report)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    found = {
        "model": model,
        "folder": str(folder.resolve()),
        "bytes": sum(p.stat().st_size for p in files),
        "files": [str(p.relative_to(folder)) for p in files],
    }
    output.show(found, json, lambda f: typer.echo(f"{f['folder']}: {len(files)} files, {output.size(f['bytes'])}"))
