"""`cachequant calibrate`: fit the basis of coded pages and keep it in a file."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from cachequant.cli import loading, output


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example("cachequant calibrate smollm2-135m --out smollm2.kv --json"))(calibrate)


def calibrate(
    model: Annotated[str, typer.Argument(help="Name, hub id, folder or GGUF file.")] = "smollm2-135m",
    out: Annotated[Path | None, typer.Option(help="File to write; --calibration FILE reads it.")] = None,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Fit the basis of coded pages of keys and values on a text that is never scored, and write it to a file.

    A coded page format does this at first use and keeps the result in the cache folder; a file can be copied.
    """
    from cachequant import kernels
    from cachequant.errors import InputError
    from cachequant.kv import calibration, calibration_file

    if out is None:
        raise InputError("no file to write: give --out FILE")
    if not out.absolute().parent.is_dir():
        raise InputError(f"--out {str(out)!r}: the folder {str(out.absolute().parent)!r} does not exist")
    with output.quiet(json):
        if threads is not None:
            kernels.set_threads(threads)
        asset = loading.resolve_model(model, json, "calibration needs a trained model and its tokenizer")
        begin = time.perf_counter()
        basis = calibration.fit(asset)
        seconds = time.perf_counter() - begin
        calibration_file.save(out, asset, basis)
    found = {
        "file": str(out), "model": asset.name, "model_sha256": asset.sha256, "tag": basis.tag,
        "bytes": out.stat().st_size, "seconds": seconds,
    }  # fmt: skip
    output.show(found, json, _print)


def _print(found: dict[str, Any]) -> None:
    output.pairs([
        ("file", f"{found['file']}, {output.size(found['bytes'])}"),
        ("model", f"{found['model']} ({found['model_sha256'][:12]})"),
        ("fitted on", found["tag"]),
        ("took", f"{found['seconds']:.1f} s"),
    ])  # fmt: skip
