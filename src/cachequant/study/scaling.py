"""How speed grows with threads: measured as far as this machine has cores, and a model for more of them.

The model has the two roofs and what is under neither (Williams et al. 2009, with a serial part as in Amdahl 1967). With
n threads, a decoded token takes bytes / (share * bandwidth(n)) + overhead seconds, and a prompt operations / (rate * n)
+ overhead. Threads share memory, so the time of a byte is a / n + b. All numbers are fitted to what was measured here.
It knows nothing of second sockets, slower clocks under load, or more memory channels: it says what this machine's
shares would come to, not what another machine does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cachequant import schemes
from cachequant.errors import InputError
from cachequant.study import machine, timing, traffic, workloads
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Crew, Progress, checked, rotations, silent
from cachequant.study.timing import BenchResult, GenerationTiming

PHASES = ("prefill", "decode")
WARM_UP_TOKENS = 4


def measure(
    names: Sequence[str],
    model: str = "smollm2-135m",
    prompt: int = 270,
    new: int = 16,
    repeats: int = 3,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict:
    """Prefill and decode with 1, 2, 4, ... threads, all interleaved.

    Parameters
    ----------
    names : schemes of this library.
    prompt, new : tokens of the prompt, and tokens generated, the first one by the prefill.
    threads : at most; None is one a physical core.

    Returns
    -------
    {"prompt", "new", "arms": {arm: {"bytes" (read for a decoded token), "operations" (of the prompt's matrix products),
    "threads": {n: {"prefill_tok_s", "decode_tok_s": summary}}}}, "missing"}.

    Raises
    ------
    InputError, AssetError : unknown arms or models, lengths that do not fit; before anything runs.
    """
    from cachequant.assets import models
    from cachequant.kernels import cpu

    names, asset = list(checked(names, schemes.get)), models.resolve(model)
    threads = cpu.physical_cores() if threads is None else threads
    at_least_one(prompt=prompt, repeats=repeats, threads=threads)
    if new < 2 or prompt + new > asset.config.context:
        raise InputError(
            f"{prompt} + {new} tokens: allowed are at least 2 new ones, and what fits the context of "
            f"{asset.config.context}"
        )
    ids = workloads.prompt_ids(prompt, asset.config.vocab, asset.tokenizer)
    keys = {f"{arm}, {n}": (arm, n) for arm in names for n in machine.counts(threads)}
    requests = {k: {"kind": "decode", "arm": arm, "model": model, "threads": n} for k, (arm, n) in keys.items()}
    runs = {key: [] for key in keys}
    with Crew(requests, threads, dict.fromkeys(requests, 0.02), progress) as crew:
        for key in crew.names:
            crew.ask(key, "generate", ids=ids, new=WARM_UP_TOKENS)
        for r, order in rotations(crew.names, repeats):
            for key in order:
                if run := crew.ask(key, "generate", ids=ids, new=new):
                    runs[key].append(BenchResult.of(GenerationTiming(**run["timing"])))
            progress(r + 1, repeats, "threads")
        weights, missing = {key: facts["weight_bytes"] for key, facts in crew.facts.items()}, crew.missing
    kv_bytes = traffic.shape(asset.config)["kv_bytes"]
    arms = {
        arm: {
            "bytes": weights[f"{arm}, 1"] + kv_bytes * (prompt + new / 2),
            "operations": traffic.prompt_operations(asset.config, prompt)["products"],
            "threads": {
                str(n): {f"{p}_tok_s": timing.summary(getattr(run, f"{p}_tok_s") for run in runs[key]) for p in PHASES}
                for key, (own, n) in keys.items()
                if own == arm and runs[key]
            },
        }
        for arm in names
        if f"{arm}, 1" in weights
    }
    return {"prompt": prompt, "new": new, "arms": arms, "missing": missing}


@dataclass(frozen=True)
class Model:
    """A fit, in seconds, bytes and operations.

    byte : (a, b), a byte takes a / n + b seconds with n threads.
    share : of the bandwidth that decode reaches where nothing else takes time.
    rates : {arm: operations a second of a thread in prefill}.
    overhead : seconds of a pass that neither fewer bytes nor more threads make shorter.
    """

    byte: tuple[float, float]
    share: float
    rates: dict[str, float]
    overhead: float

    def tokens_a_second(self, scaled: dict, arm: str, phase: str, threads: int) -> float:
        """What the model says, for the workload of `measure`'s result."""
        own = scaled["arms"][arm]
        if phase == "decode":
            return 1 / (own["bytes"] * _byte(self.byte, threads) / self.share + self.overhead)
        return scaled["prompt"] / (own["operations"] / (self.rates[arm] * threads) + self.overhead)


def fit(scaled: dict, read_gb_s: dict) -> Model:
    """The model that comes nearest to all speeds measured, by relative squares, without negative parts.

    Parameters
    ----------
    scaled : result of `measure`.
    read_gb_s : {threads: summary} of reading memory alone, for the same numbers of threads.
    """
    counts = [int(n) for n in read_gb_s]
    reading = np.array([1e-9 / cell["median"] for cell in read_gb_s.values()])
    byte = tuple(_least([[1 / n, 1.0] for n in counts], reading))
    arms, rows, seconds = list(scaled["arms"]), [], []
    for i, own in enumerate(scaled["arms"].values()):
        for n, speed in own["threads"].items():
            rate = [0.0] * len(arms)
            rate[i] = own["operations"] / int(n)
            rows += [[own["bytes"] * _byte(byte, int(n)), 1.0, *[0.0] * len(arms)], [0.0, 1.0, *rate]]
            seconds += [1 / speed["decode_tok_s"]["median"], scaled["prompt"] / speed["prefill_tok_s"]["median"]]
    slower, overhead, *per_operation = _least(rows, np.array(seconds))
    return Model(byte, 1 / slower, {a: 1 / p for a, p in zip(arms, per_operation, strict=True)}, overhead)


def extended(model: Model, scaled: dict, counts: Sequence[int]) -> dict:
    """{arm: {threads: {"prefill_tok_s", "decode_tok_s"}}} that the model says."""
    return {
        arm: {n: {f"{p}_tok_s": model.tokens_a_second(scaled, arm, p, n) for p in PHASES} for n in counts}
        for arm in scaled["arms"]
    }


def error(model: Model, scaled: dict) -> float:
    """The largest relative difference between the model and a measured median."""
    return max(
        abs(model.tokens_a_second(scaled, arm, phase, int(n)) / speed[f"{phase}_tok_s"]["median"] - 1)
        for arm, own in scaled["arms"].items()
        for n, speed in own["threads"].items()
        for phase in PHASES
    )


def _byte(byte: tuple[float, float], threads: int) -> float:
    return byte[0] / threads + byte[1]


def _least(rows, values: np.ndarray) -> list[float]:
    """Solution of rows @ x = values by relative least squares, parts that would be negative set to zero."""
    scaled = np.asarray(rows, np.float64) / values[:, None]
    size = np.abs(scaled).max(0)
    kept = np.flatnonzero(size)
    while True:
        found = np.linalg.lstsq(scaled[:, kept] / size[kept], np.ones(len(values)), rcond=None)[0] / size[kept]
        if (found >= 0).all():
            solution = np.zeros(scaled.shape[1])
            solution[kept] = found
            return solution.tolist()
        kept = np.delete(kept, found.argmin())
