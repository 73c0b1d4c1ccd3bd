"""`cachequant quantize`: a model as a quantized checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from cachequant.cli import loading, output


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example("cachequant quantize smollm2-135m ./smollm2-int8 --scheme int8"))(quantize)


def quantize(
    model: Annotated[str, typer.Argument(help="Name, hub id, folder or GGUF file.")],
    folder: Annotated[Path, typer.Argument(help="New folder to write.")],
    scheme: Annotated[str, typer.Option(help="Number format: int8, bfp8, int8-block32, w8a12, ..., auto.")] = "int8",
    head: Annotated[str | None, typer.Option(help="Format of the output projection: int8, int8-block32.")] = None,
    shard_size: Annotated[int | None, typer.Option(help="Most bytes of tensors in a file; default: one file.")] = None,
    json: output.Json = False,
) -> None:
    """Write a model as a quantized checkpoint.

    Safetensors with int8 codes and scales, configuration and tokenizer, to be loaded by any command's --model.
    """
    from cachequant import schemes
    from cachequant.assets.materialize import new_folder
    from cachequant.checkpoint.layout import require_storable
    from cachequant.checkpoint.write import write_checkpoint

    chosen = schemes.get(scheme, head)
    require_storable(chosen)
    new_folder(folder)
    with output.quiet(json):
        asset = loading.resolve_model(model, json)
        with output.progress("quantizing", json) as report:
            path = write_checkpoint(asset, folder, chosen, shard_size=shard_size, progress=report)
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    found = {
        "model": asset.name,
        "scheme": chosen.name,
        "folder": str(path),
        "bytes": size,
        "fraction_of_fp32": size / (4 * asset.weights.parameters),
    }
    output.show(found, json, _text)


def _text(found: dict) -> None:
    share = f"{100 * found['fraction_of_fp32']:.1f} % of fp32"
    typer.echo(f"{found['folder']}: {found['scheme']}, {output.size(found['bytes'])}, {share}")
