"""`cachequant memory`: how many bytes a cache of keys and values takes."""

from typing import Annotated, Any

import typer

from cachequant.cli import loading, output


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example("cachequant memory --model smollm2-135m --kv k4v3 --context 8192 --json"))(memory)


def memory(
    model: Annotated[str, typer.Option(help="Name, hub id, folder or GGUF file.")] = "smollm2-135m",
    kv: output.Kv = "k4v4",
    context: Annotated[int | None, typer.Option(help="Cached tokens; default: the model's context.")] = None,
    calibration: output.Calibration = "auto",
    json: output.Json = False,
) -> None:
    """Bytes of cached keys and values: codes, scales, exact pages and slack, counted from the shapes."""
    from cachequant.kv import formats
    from cachequant.kv import memory as calculator
    from cachequant.kv.calibration import check_calibration

    formats.get(kv), check_calibration(calibration)
    with output.quiet(json):
        asset = loading.resolve_model(model, json)
    tokens = asset.config.context if context is None else context
    output.show(calculator.report(asset.name, asset.config, kv, tokens, calibration), json, _print)


def _print(found: dict[str, Any]) -> None:
    output.pairs([
        ("cache", f"{found['model']}, pages {found['kv']}, {found['context']} tokens"),
        *((part, f"{found['bytes'][part] / 1e6:.2f} MB") for part in ("codes", "scales", "exact", "slack", "basis")),
        ("pages together", f"{found['bytes']['pages'] / 1e6:.2f} MB, {found['bytes_per_token']:.0f} bytes a token"),
        ("bits a value", f"{found['bits_per_value']:.3f}, {found['bits_per_value_limit']:.3f} in the limit"),
        ("smaller than fp32", f"{found['ratio_fp32']:.2f} times, than fp16 {found['ratio_fp16']:.2f} times"),
    ])  # fmt: skip
