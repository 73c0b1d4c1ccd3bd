"""Where the time of a forward pass goes: every kernel timed by itself, and what Python adds around them.

The stages run kernel by kernel, as the decoder does when something is put in front of its layers. The pass that users
get runs all blocks in one parallel region, and is timed beside it: what the single kernels take longer is the price of
waking threads for each of them, and of storing what the region keeps in registers and caches.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy

import numpy as np
from numba import cfunc, types

from cachequant.decoder.taps import tapped
from cachequant.errors import InputError
from cachequant.kernels import append, attention, gemm, get_threads, pointwise, region
from cachequant.study import provenance, timing, workloads
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Progress, silent

KERNELS = {
    "attention": (attention, "attend"),
    "keys and values into pages": (append, "append"),
    "RMSNorm": (pointwise, "rms_norm"),
    "LayerNorm": (pointwise, "layer_norm"),
    "rotary positions": (pointwise, "rope"),
    "SiLU and product": (pointwise, "silu_mul"),
    "GELU": (pointwise, "gelu_tanh"),
    "matrix products": (gemm, "matmul"),
}
REGION = {"blocks": (region, "run"), "head": (gemm, "matmul")}  # each wakes the threads once
EMPTY_REGIONS = 200


def profile(
    model: str = "smollm2-135m",
    scheme: str = "int8",
    prompt: int = 270,
    new: int = 20,
    repeats: int = 5,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict:
    """Seconds of each stage of a prefill and of a decoded token.

    Parameters
    ----------
    prompt, new : tokens of the prompt, and decoded ones, of which the median counts.
    repeats : prefills; their median counts.

    Returns
    -------
    {"model", "scheme", "threads", "prefill", "decode", "region_seconds" (of a parallel region that does nothing),
    "provenance"}; the phases are {"tokens", "seconds" (of the pass that users get), "python_seconds" (of it, outside
    compiled code), "stages": {name: seconds, one kernel after the other}, "stages_seconds": (of that pass)}; decode
    also has "dispatch_seconds": what a token spends on getting its kernels started, in Python and in waking threads.

    Raises
    ------
    InputError : unknown names, lengths that do not fit; before anything runs.
    """
    import cachequant

    at_least_one(prompt=prompt, new=new, repeats=repeats)
    loaded = cachequant.load(model, scheme, threads=threads)
    if prompt + new > loaded.config.context:
        raise InputError(f"{prompt} + {new} tokens do not fit the context of {loaded.config.context}")
    ids = np.asarray(workloads.prompt_ids(prompt + new, loaded.config.vocab, loaded.tokenizer))
    apart = kernel_by_kernel(loaded)
    whole, stages = [], []
    for warm in (loaded, apart):
        _pass(warm, ids[:prompt], ids[prompt : prompt + 1], {})
    for r in range(repeats):
        with recorded(REGION) as record:
            whole.append(_pass(loaded, ids[:prompt], ids[prompt:], record))
        with recorded(KERNELS) as record:
            stages.append(_pass(apart, ids[:prompt], ids[prompt:], record))
        progress(r + 1, repeats, "profiling")
    empty = timing.summary(_empty_regions())
    decode = _summary([m for run in whole for m in run[1:]], [m for run in stages for m in run[1:]])
    waking = len(REGION) * empty["median"]
    return {
        "model": loaded.name,
        "scheme": loaded.scheme.name,
        "threads": get_threads(),
        "prefill": {"tokens": prompt, **_summary([run[0] for run in whole], [run[0] for run in stages])},
        "decode": {
            "tokens": 1,
            "context": prompt,
            **decode,
            "dispatch_seconds": timing.summary(s + waking for s in decode["python_seconds"]["values"]),
        },
        "region_seconds": empty,
        "provenance": provenance.collect(models=[loaded]),
    }


def kernel_by_kernel(model):
    """The same model, which calls one kernel after the other instead of running its blocks in one parallel region."""
    apart = copy(model)
    apart._decoder = tapped(model._decoder, lambda layer, site, x: x)
    return apart


def _pass(model, prompt: np.ndarray, new: Sequence[int], record: dict) -> list[tuple[float, dict[str, float]]]:
    """(seconds, seconds of each kernel) of the prefill and of every new token."""

    def timed(ids):
        record.clear()
        begin = time.perf_counter()
        session.extend(ids)
        return time.perf_counter() - begin, dict(record)

    with model.session() as session:
        return [timed(prompt), *(timed([token]) for token in new)]


def _empty_regions() -> list[float]:
    """Seconds of parallel regions that do nothing, one after the other."""
    nothing, seconds = cfunc(types.void(types.int64))(lambda _: None), []
    for _ in range(EMPTY_REGIONS):
        begin = time.perf_counter()
        region._region(nothing.address, 0, get_threads())
        seconds.append(time.perf_counter() - begin)
    return seconds


@contextmanager
def recorded(kernels: dict[str, tuple[object, str]]) -> Iterator[dict[str, float]]:
    """Within it, {name: seconds} of the kernels grows with each call."""
    seconds: dict[str, float] = {}
    before = {name: getattr(module, attribute) for name, (module, attribute) in kernels.items()}
    try:
        for name, (module, attribute) in kernels.items():
            setattr(module, attribute, _clock(before[name], name, seconds))
        yield seconds
    finally:
        for name, (module, attribute) in kernels.items():
            setattr(module, attribute, before[name])


def _clock(kernel: Callable, name: str, seconds: dict[str, float]) -> Callable:
    def call(*arguments, **named):
        begin = time.perf_counter()
        try:
            return kernel(*arguments, **named)
        finally:
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begin

    call.overloads = getattr(kernel, "overloads", True)  # what is compiled stays compiled
    return call


def _summary(whole: list[tuple], stages: list[tuple]) -> dict:
    names = dict.fromkeys(name for _, found in stages for name in found)
    return {
        "seconds": timing.summary(total for total, _ in whole),
        "python_seconds": timing.summary(total - sum(found.values()) for total, found in whole),
        "stages": {name: timing.summary(found[name] for _, found in stages) for name in names},
        "stages_seconds": timing.summary(total for total, _ in stages),
    }
