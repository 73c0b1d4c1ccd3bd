"""`cachequant bench prefill`: prompts as long as the context, and as short as a token."""

from typing import Annotated, Any

import typer

from cachequant.cli import bench, loading, output
from cachequant.errors import InputError

METRICS = {
    "prefill_tok_s": "tokens/s",
    "attention_gops": "attention, GOP/s",
    "attention_fraction": "of our fp32 product",
    "attention_share": "attention, of the time",
}


def register(app: typer.Typer) -> None:
    epilog = output.example(
        "cachequant bench prefill --arms int8 --json", "cachequant bench prefill --prompts 512,2048 --sweep none"
    )
    bench.app.command(epilog=epilog)(prefill)


def prefill(
    arms: bench.Arms = None,
    model: Annotated[
        str, typer.Option(help="Name, hub id, folder or GGUF file; gpt2-random has random weights.")
    ] = "smollm2-135m",
    prompts: Annotated[str, typer.Option(help="Long prompts, in tokens; the last is compared with the first.")] = (
        "512,4096,8128"
    ),
    short: Annotated[str, typer.Option(help="Prompts that also run token by token; or none.")] = "1,2,4,8,16,32",
    sweep: Annotated[
        str | None, typer.Option(help="Prompts that cross the edges of tiles; or none.", show_default="1 to 33")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Prompts whose peak memory is measured; or none.", show_default="as --prompts"),
    ] = None,
    repeats: bench.Repeats = 3,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Long prompts and short ones.

    Tokens a second and attention's share by length, peak memory, and short prompts beside their tokens one by one.
    """
    from cachequant import schemes
    from cachequant.study import bench as benches
    from cachequant.study.prefill_bench import SWEEP, Work

    names = bench.names_of(arms)
    for name in names or ():
        schemes.get(name)
    work = Work(
        _lengths("--prompts", prompts),
        _lengths("--short", short),
        SWEEP if sweep is None else _lengths("--sweep", sweep),
        None if memory is None else _lengths("--memory", memory),
    )
    with output.quiet(json):
        work.check(loading.resolve_model(model, json).config.context)
        with output.progress("measuring", json) as report:
            found = benches.prefill(names, model, work, repeats, threads, report)
    output.show(found, json, _print)


def _lengths(option: str, text: str) -> list[int]:
    try:
        return [] if text == "none" else [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r} is neither whole numbers with commas between them nor none") from None


def _print(found: dict[str, Any]) -> None:
    bench.show(found)
    rows = [
        [tokens, arm, *(f"{by[metric]['median']:.3g}" for metric in METRICS)]
        for tokens, arms in found["long"].items()
        for arm, by in arms.items()
    ]
    output.table("long prompts, medians", ["tokens", "arm", *METRICS.values()], rows)
    rows = [
        [tokens, arm, *(f"{1e3 * by[part]['median']:.2f}" for part in ("seconds", "step_seconds"))]
        for tokens, arms in found["short"].items()
        for arm, by in arms.items()
    ]
    if rows:
        output.table("short prompts, ms", ["tokens", "arm", "one pass", "one by one"], rows)
    arms = list(found["arms"])
    rows = [[n, *(f"{1e3 * by[arm]['median']:.2f}" for arm in arms)] for n, by in found["sweep"].items()]
    if rows:
        output.table("one pass, ms", ["tokens", *arms], rows)
    rows = [[tokens, f"{by['bytes'] / 1e6:.1f}"] for tokens, by in found["memory"].items()]
    if rows:
        output.table("peak memory above one token's", ["tokens", "MB"], rows)
