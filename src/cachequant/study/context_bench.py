"""Seconds of a whole decoded token against the length of the context, weights and all, arms interleaved."""

import time
from collections.abc import Sequence

from cachequant.errors import InputError
from cachequant.kv.formats import PAGE
from cachequant.study import arms, comparison, peers, provenance, workloads
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Crew, Progress, checked, rotations, silent

TOKENS = 8  # decoded a round


class ContextWork:
    """One arm with a context that grows; runs inside a worker.

    Parameters
    ----------
    arm : of `cachequant.study.arms`, one that grows, such as ``int8/k4v4``.
    model, threads : as for every arm.
    tokens : most that it will hold.
    """

    def __init__(self, arm: str, model: str, threads: int, tokens: int):
        self._engine, self._held = arms.get(arm).build(model, threads), 0
        if hasattr(self._engine, "reserve"):
            self._engine.reserve(tokens)

    def facts(self) -> dict:
        return {"weight_bytes": self._engine.weight_bytes}

    def grow(self, ids: list[int]) -> dict:
        """Put tokens behind what is there; seconds, and bytes of the keys and values."""
        begin = time.perf_counter()
        self._engine.grow(ids)
        self._held += len(ids)
        return {"seconds": time.perf_counter() - begin, "bytes": self._engine.held_bytes()}

    def step(self, token: int) -> dict:
        """Seconds of a decoded token at the present length, which is left as it was."""
        begin = time.perf_counter()
        for _ in range(TOKENS):
            token = self._engine.choose(self._engine.step(token))
        spent = time.perf_counter() - begin
        self._engine.rewind(self._held)
        return {"seconds": spent / TOKENS}


def decode(
    names: Sequence[str],
    model: str = "smollm2-135m",
    contexts: Sequence[int] = (64, 1024, 4096, 8128),
    repeats: int = 5,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict[str, dict]:
    """{context: object of `comparison.assemble`} of a decoded token, with metrics `speed` (1/seconds) and `bytes`.

    Parameters
    ----------
    names : arms that grow: those of this library, such as ``int8`` and ``int8/k4v4``, and of llama.cpp.
    contexts : tokens before the decoded one, ascending multiples of a page, so that nothing is computed twice.

    Raises
    ------
    InputError, AssetError : unknown arms or models, arms that do not grow, contexts that do not fit; before anything
        runs.
    """
    from cachequant.assets import models
    from cachequant.kernels import cpu

    chosen = checked(names, arms.get)
    if fixed := [name for name, arm in chosen.items() if not arm.grows]:
        raise InputError(f"arm {fixed[0]!r} does not grow: allowed are those of this library and of llama.cpp")
    threads = cpu.physical_cores() if threads is None else threads
    asset, contexts = models.resolve(model), list(contexts)
    most = asset.config.context - TOKENS
    if not contexts or contexts != sorted(set(contexts)) or any(n % PAGE or not 0 < n <= most for n in contexts):
        raise InputError(f"contexts {contexts} have to be ascending multiples of {PAGE} up to {most}")
    at_least_one(repeats=repeats)
    ids = workloads.prompt_ids(contexts[-1] + 1, asset.config.vocab, asset.tokenizer)
    lacking = peers.prepare(chosen.values(), model, asset, progress)
    how = {"kind": "context", "model": model, "threads": threads, "tokens": contexts[-1] + TOKENS}
    requests = {n: {"arm": n, **how} for n in chosen if n not in lacking}
    found, at = {}, 0
    with Crew(requests, threads, {n: arm.settle_seconds for n, arm in chosen.items()}, progress) as crew:
        crew.missing |= lacking
        for context in contexts:
            load = provenance.load()
            grown = {name: crew.ask(name, "grow", ids=ids[at:context]) for name in crew.names}
            values = {name: {"speed": [], "bytes": []} for name in crew.names}
            for r, order in rotations(crew.names, repeats + 1):  # the first round warms up
                for name in order:
                    reply = crew.ask(name, "step", token=ids[context])
                    if reply and r:
                        values[name]["speed"].append(1 / reply["seconds"])
                        values[name]["bytes"].append(float(grown[name]["bytes"]))
                progress(r, repeats, f"{context} tokens")
            at = context
            found[str(context)] = comparison.assemble(
                values, ("speed", "bytes"), crew.missing,
                provenance.collect(models=[asset])
                | {
                    "threads": {"workers": threads},
                    "workload": {"context": context, "repeats": repeats, "tokens": TOKENS},
                    "load_before": load, "load_after": provenance.load(),
                },
            )  # fmt: skip
    return found
