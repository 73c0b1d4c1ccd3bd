"""How accurate and how fast transformers' caches are: one float32 model, the cache the only difference.

Every cache gets the keys and values of the same prompt, computed once in floats, so what differs is what it keeps of
them. The tokens scored behind the prompt then read it back. Transformers' `QuantizedCache` returns the first call's
keys and values as they came, which is why a single forward pass over a text would measure nothing.
"""

from collections.abc import Sequence

import numpy as np

from cachequant.errors import InputError
from cachequant.kv.formats import PAGE
from cachequant.study import comparison, hf_cache_arms, provenance
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Progress, rotations, silent
from cachequant.study.hf_cache_arms import BACKENDS, DYNAMIC, OURS
from cachequant.study.paired import mean_interval
from cachequant.study.processes import OPEN_SECONDS, Worker

ARMS = (DYNAMIC, OURS + "k4v4", OURS + "k4v4/fp32/none", OURS + "k4v4,0-1:k8v8", *BACKENDS)
CONTEXT, SCORE, WINDOWS = 1024, 96, 8
COUNTED = ("code_bits", "bits", "basis_bytes", "exact")
MEANS = ("kl", "top1", "top5")


def compare(
    model: str = "smollm2-135m",
    arms: Sequence[str] = ARMS,
    context: int = CONTEXT,
    score: int = SCORE,
    windows: int = WINDOWS,
    repeats: int = 0,
    text: str = "enwiki",
    threads: int | None = None,
    progress: Progress = silent,
) -> dict:
    """Divergence of each cache from floats, and decoded tokens a second, interleaved.

    Parameters
    ----------
    model : a model's name.
    arms : of `hf_cache_arms`; the first has to be ``hf-kv-dynamic``, which the others are compared with.
    context : tokens of the prompt, a multiple of a page.
    score : predictions behind it that are compared, in each window.
    windows : parts of the text, one after the other, each of `context` + `score` + 1 tokens.
    repeats : rounds of decoding behind the last window; 0 measures no speed.
    text : a text's name.
    threads : of torch and of our kernels.

    Returns
    -------
    The object of `comparison.assemble` with `decode_tok_s`, and `accuracy` {"against", "text", "context", "windows",
    "tokens", "ours": the first of our coded arms, "arms": {arm: figures}, "differences": {"arm/ours": divergence of the
    arm minus that of ours}}. Figures are `kl` (nats), `top1` and `top5` {value, low, high}, `kl_windows` (means),
    `code_bits` (a value of what is coded, scales counted), `bits` (of the whole cache at the end of a window),
    `basis_bytes` (of a calibration, which all caches of a model share and `bits` leaves out), `exact` (mean number of
    tokens that a scored one sees as floats) and `fill_seconds`, the median that storing a prompt took. Intervals are of
    a bootstrap that resamples windows, the same ones in all arms.

    Raises
    ------
    InputError, AssetError : unknown arms, models or texts, lengths that do not fit; before anything runs.
    """
    from cachequant.assets import models, texts
    from cachequant.kernels import cpu

    asset = models.resolve(model)
    names, ids = check(asset, arms, context, score, windows, text)
    source = texts.resolve(text)
    threads = cpu.physical_cores() if threads is None else threads
    at_least_one(threads=threads)
    load = provenance.load()
    with Worker(threads) as worker:
        opened = worker.ask("open", OPEN_SECONDS, kind="caches", model=model, threads=threads, arms=names)
        rows = {name: [] for name in opened["names"]}
        for i, window in enumerate(ids):
            for name, figures in worker.ask("window", OPEN_SECONDS, ids=window, context=context)["arms"].items():
                rows[name].append(figures)
            progress(i + 1, windows, "windows of text")
        timed = [name for name in names if name in rows]
        values = {name: {"decode_tok_s": []} for name in timed} if repeats else {}
        for r, order in rotations(timed, repeats + 1 if repeats else 0):  # the first round warms up
            for name in order:
                seconds = worker.ask("steps", arm=name, token=ids[-1][-1])["seconds"]
                if r:
                    values[name]["decode_tok_s"].append(1 / seconds)
            progress(r, repeats, "rounds of decoding")
    found = comparison.assemble(
        values,
        ("decode_tok_s",),
        opened["missing"],
        provenance.collect(models=[asset], texts=[source])
        | {
            "threads": {"workers": threads},
            "workload": {"context": context, "score": score, "windows": windows, "repeats": repeats},
            "load_before": load,
            "load_after": provenance.load(),
        },
    )
    about = {"against": names[0], "text": source.name, "context": context, "windows": windows}
    return found | {"accuracy": about | {"tokens": windows * score} | summarize(rows, names[0])}


def summarize(rows: dict[str, list[dict]], reference: str) -> dict:
    """`arms` and `differences` of `compare`, from the figures of each arm and window."""
    sums = {name: {k: np.array([sum(w[k]) for w in found]) for k in MEANS} for name, found in rows.items()}
    scored = np.array([len(window["kl"]) for window in rows[reference]])
    arms = {}
    for name, found in rows.items():
        fills = [window["fill_seconds"] for window in found if window["fill_seconds"] is not None]
        arms[name] = {key: mean_interval(sums[name][key], scored) for key in MEANS} | {
            "kl_windows": (sums[name]["kl"] / scored).tolist(),
            "fill_seconds": float(np.median(fills)) if fills else None,
            **{key: float(np.mean([window[key] for window in found])) for key in COUNTED},
        }
    ours = next((name for name in rows if name.startswith(OURS) and name != reference), None)
    others = [name for name in rows if ours and name not in (ours, reference)]
    return {
        "arms": arms,
        "ours": ours,
        "differences": {f"{n}/{ours}": mean_interval(sums[n]["kl"] - sums[ours]["kl"], scored) for n in others},
    }


def check(asset, arms: Sequence[str], context: int, score: int, windows: int, text: str):
    """(arms, token ids of each window) of a comparison that can run; raises as `compare` does."""
    names = list(dict.fromkeys(arms))
    for name in names:
        hf_cache_arms.kind(name)
    if not names or names[0].partition("/")[0] != DYNAMIC:
        raise InputError(f"caches are compared with {DYNAMIC}, so it has to be the first arm; got {', '.join(names)}")
    return names, _windows(asset, context, score, windows, text)


def _windows(asset, context: int, score: int, windows: int, text: str) -> list[list[int]]:
    """Token ids of each window, checked."""
    from cachequant.assets import texts

    at_least_one(context=context, scored_tokens=score, windows=windows)
    length = context + score + 1
    if context % PAGE:
        raise InputError(f"context {context!r} has to be a multiple of {PAGE}: pages of codes are that long")
    if length > asset.config.context:
        raise InputError(f"{context} + {score} scored tokens do not fit the context of {asset.config.context}")
    if asset.tokenizer is None:
        raise InputError(f"{asset.name} has no tokenizer, so no text can be scored")
    needed = length * windows
    ids = asset.tokenizer.encode(texts.resolve(text).text[: 16 * needed])[:needed]
    if len(ids) < needed:
        raise InputError(f"{text} has {len(ids)} tokens, fewer than {windows} windows of {length}")
    return [ids[i : i + length] for i in range(0, needed, length)]
