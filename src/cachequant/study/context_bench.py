"""Seconds of a whole decoded token against the length of the context, weights and all, page formats interleaved."""

import time
from collections.abc import Sequence

from cachequant.errors import InputError
from cachequant.kv.formats import PAGE
from cachequant.study import arms, comparison, provenance, workloads
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Crew, Progress, checked, rotations, silent

TOKENS = 8  # decoded a round


class ContextWork:
    """One arm with a session that grows; runs inside a worker.

    Parameters
    ----------
    arm : of `cachequant.study.arms`, of this library, such as ``int8/k4v4``.
    model, threads : as for every arm.
    """

    def __init__(self, arm: str, model: str, threads: int):
        self._engine = arms.Ours(model, arm, threads)
        self._session = self._engine.session()

    def facts(self) -> dict:
        return {"weight_bytes": self._engine.weight_bytes}

    def grow(self, ids: list[int]) -> dict:
        """Put tokens behind what is there; seconds, and bytes of the pages."""
        begin = time.perf_counter()
        self._session.extend(ids, logits="none")
        return {"seconds": time.perf_counter() - begin, "bytes": self._session.nbytes}

    def step(self, token: int) -> dict:
        """Seconds of a decoded token at the present length, which is left as it was."""
        place = self._session.position
        begin = time.perf_counter()
        for _ in range(TOKENS):
            token = self._engine.choose(self._session.extend([token]))
        spent = time.perf_counter() - begin
        self._session.rewind(place)
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
    names : arms of this library, such as ``int8`` and ``int8/k4v4``.
    contexts : tokens before the decoded one, ascending multiples of a page, so that nothing is computed twice.

    Raises
    ------
    InputError, AssetError : unknown arms or models, contexts that do not fit; before anything runs.
    """
    from cachequant.assets import models
    from cachequant.kernels import cpu

    checked(names, arms.get)
    threads = cpu.physical_cores() if threads is None else threads
    asset, contexts = models.resolve(model), list(contexts)
    most = asset.config.context - TOKENS
    if not contexts or contexts != sorted(set(contexts)) or any(n % PAGE or not 0 < n <= most for n in contexts):
        raise InputError(f"contexts {contexts} have to be ascending multiples of {PAGE} up to {most}")
    at_least_one(repeats=repeats)
    ids = workloads.prompt_ids(contexts[-1] + 1, asset.config.vocab, asset.tokenizer)
    requests = {n: {"kind": "context", "arm": n, "model": model, "threads": threads} for n in names}
    found, at = {}, 0
    with Crew(requests, threads, dict.fromkeys(requests, 0.02), progress) as crew:
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
