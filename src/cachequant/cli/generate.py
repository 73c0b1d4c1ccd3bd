"""`cachequant generate`: continue a text, or token ids."""

import sys
from typing import Annotated, Any

import typer

import cachequant
from cachequant.cli import loading, output
from cachequant.errors import InputError

EXAMPLES = (
    'cachequant generate "The history of Paris" --scheme int8 --kv k4v4 --max-new-tokens 50 --stream',
    "cachequant generate --model gpt2-random --ids 1,2,3 --max-new-tokens 20 --json",
)


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example(*EXAMPLES))(generate)


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue.", show_default=False)] = None,
    ids: Annotated[str | None, typer.Option(help="Token ids to continue instead of a text: 1,2,3.")] = None,
    model: Annotated[str, typer.Option(help="Name, hub id, folder or GGUF file.")] = "smollm2-135m",
    scheme: output.Scheme = None,
    head: output.Head = None,
    kv: output.Kv = "fp32",
    calibration: output.Calibration = "auto",
    max_new_tokens: Annotated[int | None, typer.Option(help="Stop after this many; default: context limit.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the smallest set with this probability.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    threads: output.Threads = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text as it comes.")] = False,
    json: output.Json = False,
) -> None:
    """Continue a text, or token ids.

    The text goes to stdout, how fast it went to stderr.
    """
    if (prompt is None) == (ids is None):
        raise InputError("give either a PROMPT or --ids 1,2,3")
    if stream and json:
        raise InputError("--stream and --json exclude each other")
    given = prompt if ids is None else parse_ids(ids)
    sampling = dict(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    with output.quiet(json):
        _check(model, scheme, head, kv, calibration, given, sampling, json)
        loaded = cachequant.load(model, scheme, head, threads, kv, calibration)
        generation, steps = loaded.start(given, max_new_tokens, **sampling)
        if stream:
            _print(loaded, steps)
        else:
            with output.progress("generating", json) as report:
                for _ in steps:
                    report(len(generation.ids), max_new_tokens)
    output.show(describe(loaded, generation), json, _summary if stream else _text)


def parse_ids(text: str) -> list[int]:
    """`1,2,3` as a list of token ids."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--ids {text!r} is not a list of whole numbers such as 1,2,3") from None


def describe(model, generation) -> dict[str, Any]:
    """What --json prints."""
    seconds = sum(generation.token_seconds)
    return {
        "model": model.name,
        "random_weights": model.random,
        "scheme": model.scheme.name,
        "kv": model.kv.name,
        "ids": generation.ids,
        "text": generation.text if model.tokenizer else None,
        "stop_reason": generation.stop_reason,
        "prompt_tokens": generation.prompt_tokens,
        "prefill_tok_s": generation.prompt_tokens / generation.prefill_seconds if generation.prefill_seconds else None,
        "decode_tok_s": len(generation.token_seconds) / seconds if seconds else None,
    }


def _check(
    model: str, scheme: str | None, head: str | None, kv: str, calibration: str, given: str | list[int], sampling: dict,
    json: bool,
) -> None:  # fmt: skip
    """Every check that needs no packed weights."""
    from cachequant import schemes
    from cachequant.decoder.sampling import Sampler
    from cachequant.kv import formats
    from cachequant.kv.calibration import check_calibration

    schemes.get(scheme or "fp32", head), formats.get(kv), check_calibration(calibration)
    Sampler(**sampling)
    loading.resolve_model(model, json, "give token ids with --ids 1,2,3" if isinstance(given, str) else None)


def _print(model, steps) -> None:
    """Writes text, or ids if there is no tokenizer, as tokens come; nothing that is half a character."""
    text = model.tokenizer.stream() if model.tokenizer else None
    for token in steps:
        sys.stdout.write(text.feed(token) if text else f"{token} ")
        sys.stdout.flush()
    sys.stdout.write((text.finish() if text else "") + "\n")
    sys.stdout.flush()


def _text(found: dict[str, Any]) -> None:
    typer.echo(" ".join(map(str, found["ids"])) if found["text"] is None else found["text"])
    _summary(found)


def _summary(found: dict[str, Any]) -> None:
    name = found["model"] + (" (random weights)" if found["random_weights"] else "")
    pages = "" if found["kv"] == "fp32" else f", pages {found['kv']}"
    parts = [f"{name}, {found['scheme']}{pages}: {len(found['ids'])} tokens ({found['stop_reason']})"]
    for label, key in (("prefill", "prefill_tok_s"), ("decode", "decode_tok_s")):
        if found[key] is not None:
            parts.append(f"{label} {found[key]:.1f} tok/s")
    output.note(", ".join(parts))
