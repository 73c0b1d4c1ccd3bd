"""`cachequant perplexity`: what a scheme costs in quality on a text."""

from typing import Annotated, Any

import typer

from cachequant import schemes
from cachequant.cli import loading, output


def register(app: typer.Typer) -> None:
    command = "cachequant perplexity --scheme int8 --text enwiki --window 512 --tokens 4096 --against fp32"
    app.command(epilog=output.example(command))(perplexity)


def perplexity(
    model: Annotated[str, typer.Option(help="Name, hub id, folder or GGUF file.")] = "smollm2-135m",
    scheme: Annotated[
        str | None,
        typer.Option(help="Number format: fp32, int8, w8a12, ..., auto; default: as stored, else int8."),
    ] = None,
    kv: output.Kv = "fp32",
    text: Annotated[
        str | None,
        typer.Option(
            help="wikitext-2-test, wikitext-2-valid, the same with -raw, enwiki, a path; default: what is there."
        ),
    ] = None,
    window: Annotated[int, typer.Option(help="Tokens of a window; windows do not overlap.")] = 1024,
    tokens: Annotated[int, typer.Option(help="Tokens from the start of the text.")] = 4096,
    against: Annotated[str | None, typer.Option(help="Compare with this, token by token: fp32.")] = None,
    calibration: output.Calibration = "auto",
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Score a text.

    Perplexity, and with --against fp32 the change, KL divergence and how often the best tokens agree.
    No beginning-of-text token; all but the first token of a window are scored.
    """
    from cachequant.kv import formats
    from cachequant.kv.calibration import check_calibration
    from cachequant.study import quality

    schemes.get(scheme or "int8"), formats.get(kv), check_calibration(calibration)
    with output.quiet(json):
        loading.resolve_model(model, json, "perplexity needs a trained model and its tokenizer")
        with output.progress("scoring", json) as report:
            found = quality.perplexity(
                model, scheme=scheme, kv=kv, text=text, window=window, tokens=tokens, against=against, threads=threads,
                calibration=calibration, progress=report,
            )  # fmt: skip
    output.show(found, json, _print)


def _print(found: dict[str, Any]) -> None:
    how = f"{found['scored']} tokens scored, windows of {found['window']}, no beginning-of-text token"
    rows = [
        ("model", f"{found['model']}, {found['scheme']}, pages {found['kv']}"),
        ("text", f"{found['text']}: {how}"),
        ("perplexity", f"{found['perplexity']:.4f}"),
    ]
    if "delta_percent" in found:
        change = found["delta_percent"]
        rows += [
            ("against fp32", f"{change['value']:+.3f} % [{change['low']:+.3f}, {change['high']:+.3f}]"),
            ("KL divergence", f"{found['kl']:.6f} nats a token"),
            ("same best token", f"{100 * found['top1']:.2f} %"),
            ("in the best five", f"{100 * found['top5']:.2f} %"),
        ]
    output.pairs(rows)
