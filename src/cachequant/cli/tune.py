"""`cachequant tune`: which scheme ``auto`` stands for on this machine."""

from typing import Annotated, Any

import typer

from cachequant.cli import loading, output
from cachequant.errors import InputError


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example("cachequant tune", "cachequant tune --reset"))(tune)


def tune(
    model: Annotated[
        str, typer.Option(help="Name, hub id, folder or GGUF file; gpt2-random has random weights.")
    ] = "smollm2-135m",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; every candidate runs once a round; at least 5.")] = 9,
    threads: output.Threads = None,
    reset: Annotated[bool, typer.Option("--reset", help="Measure nothing and forget what was chosen here.")] = False,
    json: output.Json = False,
) -> None:
    """Measure what --scheme auto stands for.

    Runs the schemes whose published perplexity is close to that of fp32, interleaved, and keeps the choice in the cache
    folder, for this machine and version. Another scheme than the fixed table's is taken only if it is faster beyond the
    interval.
    """
    from cachequant import tuning
    from cachequant.study import tune as study

    if reset:
        removed = tuning.forget()
        choice = tuning.by_table()
        found = {"auto": choice.scheme, "source": choice.source, "why": choice.why, "removed": removed}
        output.show(found, json, _print_reset)
        return
    if repeats < study.LEAST:
        raise InputError(f"--repeats {repeats}: a choice needs at least {study.LEAST} rounds")
    with output.quiet(json):
        asset = loading.resolve_model(model, json)
        with output.progress("tuning", json) as report:
            found = study.tune(asset, repeats, threads, report)
        path = tuning.store(**_note(found))
    output.show({"auto": found["choice"]["scheme"], "source": tuning.TUNED, "file": str(path), **found}, json, _print)


def _note(found: dict[str, Any]) -> dict[str, Any]:
    choice, about = found["choice"], found["provenance"]
    speeds = {name: ratios["speed"] for name, ratios in found["ratios"].items() if name.endswith("/" + choice["table"])}
    measured = {"speed": speeds, "workload": about["workload"], "threads": about["threads"], "models": about["models"]}
    return {"scheme": choice["scheme"], "why": choice["why"], "date": choice["date"], "measured": measured}


def _print(found: dict[str, Any]) -> None:
    choice, work = found["choice"], found["provenance"]["workload"]
    rows = []
    for name, arm in found["arms"].items():
        r = found["ratios"].get(f"{name}/{choice['table']}", {}).get("speed")
        against = f"{r['median']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" if r else "1"
        rows.append([name, *(f"{arm[m]['median']:.1f}" for m in ("prefill_tok_s", "decode_tok_s")), against])
    model = found["provenance"]["models"][0]["name"]
    title = f"{model}, requests of {work['prompt']} + {work['answer']} tokens, medians of {work['repeats']} rounds"
    output.table(title, ["scheme", "prefill tok/s", "decode tok/s", f"speed / {choice['table']}"], rows)
    typer.echo(f"auto is now {choice['scheme']}: {choice['why']}")
    for name, sets in found["kernels"].items():
        for kernel_set, r in sets.items():
            if r["low"] > 1:
                output.note(f"note: {name} is {r['median']:.2f} times as fast with CACHEQUANT_KERNELS={kernel_set}")
    for name in found["missing"]:
        output.note(f"not measured: {name}: {found['provenance']['missing'][name]}")


def _print_reset(found: dict[str, Any]) -> None:
    typer.echo("the stored choice is forgotten" if found["removed"] else "nothing was stored for this machine")
    typer.echo(f"auto is {found['auto']}: {found['why']}")
