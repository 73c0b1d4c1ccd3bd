"""`cachequant profile`: where the time of a forward pass goes."""

from typing import Annotated, Any

import typer

from cachequant import schemes
from cachequant.cli import output


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example("cachequant profile --scheme int8 --prompt 270 --new 20"))(profile)


def profile(
    model: Annotated[str, typer.Option(help="Name, hub id, folder or GGUF file.")] = "smollm2-135m",
    scheme: Annotated[str, typer.Option(help="Number format: fp32, int8, bfp8, int8+head, ...")] = "int8",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 270,
    new: Annotated[int, typer.Option(min=1, help="Tokens decoded after it.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions; medians count.")] = 5,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Time the stages of a prefill and of a decoded token.

    Every kernel by itself, and the whole pass in one parallel region beside it, with what Python adds to that.
    """
    from cachequant.study import breakdown

    schemes.get(scheme)
    with output.quiet(json), output.progress("profiling", json) as report:
        found = breakdown.profile(model, scheme, prompt, new, repeats, threads, report)
    output.show(found, json, _print)


def _print(found: dict[str, Any]) -> None:
    for phase in ("prefill", "decode"):
        part = found[phase]
        total, alone = part["seconds"]["median"], part["stages_seconds"]["median"]
        what = f"{part['tokens']} tokens" if phase == "prefill" else f"one token after {part['context']}"
        title = f"{phase} of {what}, {found['model']} {found['scheme']}, {found['threads']} threads"
        rows = [["whole pass, one parallel region", f"{1e3 * total:.2f}", ""]]
        rows.append(["  of it in Python", f"{1e3 * part['python_seconds']['median']:.2f}", ""])
        if "dispatch_seconds" in part:
            rows.append(["  of it starting kernels", f"{1e3 * part['dispatch_seconds']['median']:.2f}", ""])
        rows.append(["kernel by kernel", f"{1e3 * alone:.2f}", "100 %"])
        ordered = sorted(part["stages"].items(), key=lambda item: -item[1]["median"])
        rows += [[f"  {n}", f"{1e3 * s['median']:.2f}", f"{s['median'] / alone:.0%}"] for n, s in ordered]
        output.table(title, ["stage", "ms", "share"], rows)
