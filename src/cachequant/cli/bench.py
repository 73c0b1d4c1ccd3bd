"""`cachequant bench`: speed of whole models, matrix products, attention and prefix reuse, beside peers."""

import re
from functools import partial
from typing import Annotated, Any

import typer

from cachequant.cli import loading, output
from cachequant.errors import InputError

METRICS = (
    "prefill_tok_s",
    "decode_tok_s",
    "gops",
    "gb_s",
    "bandwidth_fraction",
    "speed",
    "overhead_ms",
    "bytes",
)  # of the table; --json has all

ACCURACY = {"kl": ".4f", "top1": ".1%"}
COUNTED = ("code_bits", "bits", "exact")

app = typer.Typer(rich_markup_mode=None)
Arms = Annotated[str | None, typer.Option(help="Names with commas between them; default: those of the study.")]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; every arm runs once a round.")]


def register(parent: typer.Typer) -> None:
    epilog = output.example("cachequant bench decode --arms transformers-fp32,int8 --repeats 3")
    parent.add_typer(app, name="bench", help="Measure speed, arms interleaved.", epilog=epilog)


@app.command(
    epilog=output.example(
        "cachequant bench decode --arms torch-int8,fp32,int8 --prompt 270 --new 40 --json",
        "cachequant bench decode --arms llamacpp-q8_0,ctranslate2-int8,int8+head  # after make peers",
    )
)
def decode(
    arms: Arms = None,
    model: Annotated[
        str, typer.Option(help="Name, hub id, folder or GGUF file; gpt2-random has random weights.")
    ] = "smollm2-135m",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 270,
    new: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 40,
    repeats: Repeats = 5,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Prefill and decode, in tokens a second.

    Arms are the schemes of this library, transformers-fp32, -bf16, -fp16, torch-int8, llamacpp-f32, -q8_0,
    ctranslate2-fp32, -int8. Keys and values stand behind a slash: int8/k4v4, llamacpp-q8_0/f16, /q8_0, /q4_0 (with
    flash attention). Those that cannot run here are named, the others go on.
    """
    from cachequant.study import bench

    _engines(bench.decode, model, arms, prompt, new, repeats, threads, json)


@app.command(epilog=output.example("cachequant bench gemm --arms torch-fp32,fp32,int8 --repeats 5"))
def gemm(
    arms: Arms = None,
    model: Annotated[
        str | None, typer.Option(help="Shapes of this model; default: of GPT-2 small and SmolLM2.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the large products.")] = 270,
    repeats: Repeats = 5,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Matrix products at a model's shapes.

    GOP/s for a prompt, GB/s for a single token with the weights out of memory.
    """
    from cachequant.study import bench

    with output.quiet(json), output.progress("measuring", json) as report:
        found = bench.gemm(names_of(arms), model, rows, repeats, threads, report)
    output.show(found, json, show)


@app.command(epilog=output.example("cachequant bench attention --arms sdpa-fp32,kv-fp32,kv-k4v4 --context 8192 --json"))
def attention(
    arms: Arms = None,
    model: Annotated[str, typer.Option(help="Whose layers and heads are taken.")] = "smollm2-135m",
    context: Annotated[int, typer.Option(min=1, help="Cached tokens.")] = 4096,
    geometry: Annotated[
        str | None, typer.Option(help="LAYERS,HEADS,KV_HEADS,HEAD_DIM instead of a model's: 1,4,4,128.")
    ] = None,
    repeats: Repeats = 5,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Attention of one new token over a cache, all layers, keys and values out of memory.

    Arms are sdpa-fp32, sdpa-fp16 (torch) and kv- with a page format, such as kv-fp32, kv-k4v4.
    """
    from cachequant.study import bench

    shape = None if geometry is None else _numbers(geometry)
    with output.quiet(json):
        if shape is None:
            loading.resolve_model(model, json)
        with output.progress("measuring", json) as report:
            found = bench.attention(names_of(arms), model, context, repeats, threads, report, shape)
    output.show(found, json, show)


def _numbers(geometry: str) -> list[int]:
    try:
        return [int(part) for part in geometry.split(",")]
    except ValueError:
        raise InputError(f"--geometry {geometry!r} is not four whole numbers such as 1,4,4,128") from None


@app.command(
    epilog=output.example(
        "cachequant bench prefix --set long_high_reuse --scheme int8 --json",
        "cachequant bench prefix --set multi_turn --kv k4v4 --repeats 3",
    )
)
def prefix(
    name: Annotated[
        str, typer.Option("--set", help="high_reuse, long_high_reuse, no_reuse, multi_turn.")
    ] = "high_reuse",
    arms: Arms = None,
    model: Annotated[
        str, typer.Option(help="Name, hub id, folder or GGUF file; gpt2-random has random weights.")
    ] = "smollm2-135m",
    scheme: Annotated[str, typer.Option(help="Number format: fp32, int8, w8a12, bfp8, ..., auto.")] = "fp32",
    kv: output.Kv = "fp32",
    calibration: output.Calibration = "auto",
    new: Annotated[
        int | None, typer.Option(min=0, help="Tokens of each answer; default: 12 in multi_turn, else 0.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Rounds; default: 50 for no_reuse, else 5.", show_default=False)
    ] = None,
    logits: Annotated[str, typer.Option(help="last position, or all that are computed.")] = "last",
    budget: Annotated[int | None, typer.Option(help="Most bytes of cached pages; default: no limit.")] = None,
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """Time to the first token with a prefix cache.

    Arms are cache, no-cache, and bound: the prefill of exactly the tokens that the cache does not have.
    """
    from cachequant import schemes
    from cachequant.kv import formats
    from cachequant.kv.calibration import check_calibration
    from cachequant.study import bench, prefix_bench

    chosen = names_of(arms)
    prefix_bench.check(name, chosen or prefix_bench.ARMS, new, repeats, logits)
    schemes.get(scheme), formats.get(kv), check_calibration(calibration)
    with output.quiet(json):
        loading.resolve_model(model, json)
        with output.progress("measuring", json) as report:
            found = bench.prefix(
                model, name, chosen, scheme, kv, calibration, new, repeats, threads, logits, budget, report
            )
    output.show(found, json, _prefix)


def _prefix(found: dict[str, Any]) -> None:
    show(found)
    rows = []
    for row in found["requests"]:
        times = [1e3 / values["speed"]["median"] for values in row["arms"].values()]
        place = f"{row['conversation'] + 1}.{row['turn'] + 1}"
        rows.append([place, f"{row['prompt']}", f"{row['matched']}", *(f"{ms:.1f}" for ms in times)])
    output.table("ms to the first token, medians", ["request", "prompt", "found", *found["arms"]], rows)
    same = "bit-identical logits in all arms" if found["identical"] else "LOGITS DIFFER between arms"
    output.note(f"{found['hit_rate']:.1%} of the prompts' tokens found, {same}")


@app.command(
    epilog=output.example(
        "cachequant bench transformers --arms transformers-fp32,hf-int8 --json",
        "cachequant bench transformers --arms hf-kv-dynamic,hf-kv-k4v4,hf-quanto,hf-hqq --context 1024 --score 96",
    )
)
def transformers(
    arms: Arms = None,
    model: Annotated[str, typer.Option(help="Name, hub id, folder or GGUF file.")] = "smollm2-135m",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 270,
    context: Annotated[int | None, typer.Option(min=1, help="Cached tokens when decoding begins: --prompt.")] = None,
    new: Annotated[int, typer.Option(min=2, help="Tokens to generate.")] = 40,
    repeats: Repeats = 5,
    score: Annotated[
        int, typer.Option(min=0, help="Predictions behind the context that are compared with those of exact floats.")
    ] = 0,
    windows: Annotated[int, typer.Option(min=1, help="Parts of the text with so many scored tokens each.")] = 8,
    text: Annotated[str, typer.Option(help="Text of --score.")] = "enwiki",
    threads: output.Threads = None,
    json: output.Json = False,
) -> None:
    """transformers with our layers in it, beside itself.

    Arms are transformers-fp32, hf- with a scheme, such as hf-int8, and the others of bench decode; bytes are those of
    the prompt's keys and values. Arms of caches are hf-kv-dynamic, hf-kv- with a page format, and hf-quanto and
    hf-hqq, transformers' QuantizedCache at 4 bits, where these packages are installed; layers are int8, or a scheme
    behind a slash, and a calibration behind that: hf-kv-k4v4/fp32/none.

    With --score caches are compared too, in float32 layers and after the same prompt of --context tokens, so that
    nothing but the cache differs: divergence from hf-kv-dynamic, bits a value, and tokens that are seen exactly.
    """
    from cachequant.study import bench

    measure = partial(bench.transformers, score=score, windows=windows, text=text)
    _engines(measure, model, arms, context or prompt, new, repeats, threads, json)


def _engines(measure, model: str, arms: str | None, prompt: int, new: int, repeats: int, threads, json: bool) -> None:
    """Check the arms, which are engines, measure them and show what was found."""
    from cachequant.study import arms as registry

    names = names_of(arms)
    for name in names or ():
        registry.get(name)
    with output.quiet(json):
        loading.resolve_model(model, json)
        with output.progress("measuring", json) as report:
            found = measure(model, names, prompt, new, repeats, threads, report)
    output.show(found, json, _scored)


def _scored(found: dict[str, Any]) -> None:
    show(found)
    if scored := found.get("accuracy"):
        rows = [
            [arm, *(_mean(v[key], form) for key, form in ACCURACY.items()), *(f"{v[k]:.2f}" for k in COUNTED)]
            for arm, v in scored["arms"].items()
        ]
        title = (
            f"{scored['tokens']} predictions in {scored['windows']} windows of {scored['text']}, behind "
            f"{scored['context']} tokens, against {scored['against']} [95 % interval]"
        )
        output.table(title, ["arm", "KL, nats", "same arg max", "bits a code", "bits a value", "exact tokens"], rows)


def _mean(value: dict[str, Any], form: str) -> str:
    return f"{value['value']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def names_of(arms: str | None) -> list[str] | None:
    """Names with commas between them as a list; a comma inside a page format, k4v4,0-1:k8v8, does not part names."""
    return None if arms is None else [name.strip() for name in re.split(r",(?!\d+(?:-\d+)?:)", arms)]


def show(found: dict[str, Any]) -> None:
    """Medians of all arms, their ratios to the first, and what could not run."""
    arms, ratios = found["arms"], found["ratios"]
    metrics = [m for m in METRICS if any(m in values for values in arms.values())]
    rows = [[arm, *(_cell(values.get(m)) for m in metrics)] for arm, values in arms.items()]
    output.table("median [95 % interval]", ["arm", *metrics], rows)
    first = next(iter(arms), None)
    rows = [
        [pair, *(_cell(values.get(m)) for m in metrics)]
        for pair, values in ratios.items()
        if pair.endswith(f"/{first}")
    ]
    if rows:
        output.table(f"ratios to {first}, paired within rounds", ["arms", *metrics], rows)
    for arm in found["missing"]:
        output.note(f"{arm} could not run: {found['provenance']['missing'][arm]}")
    for arm, what in found.get("partial", {}).items():
        output.note(f"{arm}: {what}")


def _cell(value: dict[str, Any] | None) -> str:
    return f"{value['median']:.4g} [{value['low']:.4g}, {value['high']:.4g}]" if value else ""
