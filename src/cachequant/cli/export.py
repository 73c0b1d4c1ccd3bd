"""`cachequant export`: a model as a GGUF file, for llama.cpp."""

from pathlib import Path
from typing import Annotated

import typer

from cachequant.cli import loading, output


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example("cachequant export smollm2-135m smollm2-q8_0.gguf"))(export)


def export(
    model: Annotated[str, typer.Argument(help="Name, hub id, folder, checkpoint or GGUF file.")],
    file: Annotated[Path, typer.Argument(help="New .gguf file to write.")],
    scheme: Annotated[
        str | None,
        typer.Option(help="fp32, q8_0, int8, ..., or with +head; default: the checkpoint's, else q8_0+head."),
    ] = None,
    json: output.Json = False,
) -> None:
    """Write a model as a GGUF file.

    Codes are those that this library runs with, in llama.cpp's Q8_0, which rounds scales to float16: of q8_0+head none
    changes, and loading the file gives the same bits.
    """
    from cachequant import schemes
    from cachequant.assets.gguf_write import check_export, export_gguf

    chosen = schemes.get("q8_0+head" if scheme is None else scheme)
    with output.quiet(json):
        asset = loading.resolve_model(model, json)
        if scheme is None and asset.scheme is not None:
            chosen = asset.scheme
        check_export(asset, file, chosen)
        with output.progress("writing tensors", json) as report:
            vocabulary = export_gguf(asset, file, chosen, report)
    found = {
        "model": asset.name,
        "scheme": chosen.name,
        "file": str(file.absolute()),
        "bytes": file.stat().st_size,
        "vocabulary": vocabulary,
    }
    output.show(found, json, _text)


def _text(found: dict) -> None:
    typer.echo(f"{found['file']}: {found['scheme']}, {output.size(found['bytes'])}")
    if not found["vocabulary"]:
        output.note("the file has no vocabulary: the tokenizer is none that GGUF names; it takes token ids")
