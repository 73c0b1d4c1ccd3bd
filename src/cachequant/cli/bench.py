"""`cachequant bench`: speed of whole models and of matrix products, this library beside its peers."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from cachequant.cli import loading, output

app = typer.Typer(rich_markup_mode=None)
Model = Annotated[str, typer.Option(help="Name, hub id, folder or GGUF file; gpt2-random for speed only.")]
Arms = Annotated[str | None, typer.Option(help="Names with commas between them; default: all that run here.")]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; every arm runs once a round.")]


def register(parent: typer.Typer) -> None:
    epilog = output.example("cachequant bench decode --arms transformers-fp32,int8 --repeats 3")
    parent.add_typer(app, name="bench", help="Measure speed, arms interleaved.", epilog=epilog)


@app.command(
    epilog=output.example("cachequant bench decode --arms transformers-fp32,fp32,int8 --prompt 270 --new 40 --json")
)
def decode(
    arms: Arms = None,
    model: Model = "smollm2-135m",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 270,
    new: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 40,
    repeats: Repeats = 3,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Prefill and decode, in tokens a second."""
    from cachequant.study import bench
    from cachequant.study.arms import DEFAULT

    loading.resolve_model(model, json)
    with output.clean_stdout(json), output.progress("measuring", json) as report:
        found = bench.bench_decode(model, _names(arms, DEFAULT), prompt, new, repeats, threads, report)
    output.show(found, json, _print)


@app.command(epilog=output.example("cachequant bench gemm --arms torch-fp32,int8 --repeats 5"))
def gemm(
    arms: Arms = None,
    model: Model = "smollm2-135m",
    repeats: Repeats = 5,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Matrix products at a model's shapes.

    GOP/s for a prompt, GB/s for a single token.
    """
    from cachequant.study import bench

    with output.clean_stdout(json), output.progress("measuring", json) as report:
        found = bench.gemm(arms=_names(arms), model=model, repeats=repeats, threads=threads, progress=report)
    output.show(found, json, _print)


def _names(arms: str | None, default: Sequence[str]) -> Sequence[str]:
    return default if arms is None else [name.strip() for name in arms.split(",")]


def _print(found: dict[str, Any]) -> None:
    metrics = sorted(
        {metric for values in found["arms"].values() for metric in values if _is_statistic(values[metric])}
    )
    rows = [[arm, *(_cell(values.get(m)) for m in metrics)] for arm, values in found["arms"].items()]
    output.table("median [95 % interval]", ["arm", *metrics], rows)
    first = next(iter(found["arms"]), None)
    ratios = {pair: values for pair, values in found["ratios"].items() if pair.endswith(f"/{first}")}
    if ratios:
        rows = [[pair, *(_cell(values.get(m)) for m in metrics)] for pair, values in ratios.items()]
        output.table(f"ratio to {first}, paired", ["arms", *metrics], rows)
    for arm in found["missing"]:
        output.note(f"{arm} could not run: {found['provenance']['missing'][arm]}")
    for arm, what in found.get("partial", {}).items():
        output.note(f"{arm}: {what}")


def _is_statistic(value: Any) -> bool:
    return isinstance(value, dict) and "median" in value


def _cell(value: Any) -> str:
    return f"{value['median']:.4g} [{value['low']:.4g}, {value['high']:.4g}]" if _is_statistic(value) else ""
