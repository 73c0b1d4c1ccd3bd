"""`cachequant verify`: parity and determinism of one model on this machine."""

from typing import Annotated, Any

import typer

from cachequant.cli import output


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example("cachequant verify", "cachequant verify --model gpt2-random --json"))(verify)


def verify(
    model: Annotated[str, typer.Option(help="Name, hub id, folder or GGUF file.")] = "smollm2-135m",
    json: output.Json = False,
) -> None:
    """Check a model on this machine.

    Parity with transformers, chunking, threads, kernels, quantizers. Exit code 1 if a check failed or could not run.
    """
    from cachequant import verify as checks

    with output.quiet(json), output.progress("verifying", json) as report:
        found = checks.verify(model, report).to_json()
    output.show(found, json, _print)
    if not found["ok"]:
        raise typer.Exit(1)


def _print(found: dict[str, Any]) -> None:
    words = {True: "ok", False: "FAILED", None: "not run"}
    rows = [
        [c["name"], words[c["ok"]], _number(c["value"]), _number(c["limit"]), c.get("note", "")]
        for c in found["checks"]
    ]
    output.table(f"{found['model']} on {found['text']}", ["check", "", "value", "limit", "note"], rows, words=(0, 1, 4))
    failed = [c["name"] for c in found["checks"] if not c["ok"]]
    typer.echo(f"{len(rows)} checks, all passed" if found["ok"] else f"not ok: {', '.join(failed) or 'no checks'}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
