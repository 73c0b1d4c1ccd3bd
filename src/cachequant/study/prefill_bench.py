"""Prompts as long as the context, and as short as a token: what a pass over more positions costs.

Long prompts: attention grows with the square of the length, so tokens a second fall; how far depends on how near
attention comes to a matrix product of the same kind of numbers. Short prompts: a pass over a few tokens reads every
weight once, as a decoded token does, so it should never take longer than its tokens one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cachequant import schemes
from cachequant.errors import InputError
from cachequant.study import comparison, machine, provenance, session_memory, timing, traffic, workloads
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Crew, Progress, checked, rotations, silent

ARMS = ("fp32", "int8")
LONG = (512, 4096, 8128)
SHORT = (1, 2, 4, 8, 16, 32)
SWEEP = tuple(range(1, 34))  # crosses the edges of every tile of our kernels
GEMM = "gemm"  # not an arm of the result: our large float32 product, asked in every turn
COMPARED = ("prefill_tok_s",)
MEMORY_FLOOR = 1  # tokens of the session that peaks are measured above


@dataclass(frozen=True)
class Work:
    """Lengths, in tokens, at which the arms run.

    long : prompts in one pass, and once more kernel by kernel; the first and the last are compared.
    short : prompts in one pass and token by token.
    sweep : prompts in one pass only.
    memory : prompts of which the peak memory is measured, in fresh processes under the last arm; None is `long`.
    """

    long: Sequence[int] = LONG
    short: Sequence[int] = SHORT
    sweep: Sequence[int] = ()
    memory: Sequence[int] | None = None
    jobs: list = field(init=False)

    def __post_init__(self):
        lengths = {"prefill": self.long, "attention": self.long, "steps": self.short, "short": self.sweep}
        object.__setattr__(self, "jobs", [(do, n) for do, many in lengths.items() for n in many])
        object.__setattr__(self, "memory", self.long if self.memory is None else self.memory)

    def check(self, context: int) -> None:
        """Raises InputError for lengths that do not fit; `memory` decodes one more token."""
        for name, most in (("long", context), ("short", context), ("sweep", context), ("memory", context - 1)):
            given = list(getattr(self, name))
            if given != sorted(set(given)) or any(not 1 <= n <= most for n in given) or (name == "long" and not given):
                raise InputError(f"{name} prompts {given} have to be ascending, from 1 to {most} tokens")


def prefill(
    names: Sequence[str] | None = None,
    model: str = "smollm2-135m",
    work: Work | None = None,
    repeats: int = 3,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict:
    """Speed of long prompts and of short ones; in every round every arm runs every length, arms in turn.

    Parameters
    ----------
    names : schemes of this library; None is ARMS.

    Returns
    -------
    The object of `comparison.assemble` with the metrics `prefill_tok_s` (of the longest prompt), `kept` (that over the
    tokens a second of the first of the long ones), `attention_gops` (operations of causal attention over the longest
    prompt, counted, a second inside attention), `attention_fraction` (of our float32 matrix product in the same turn)
    and `against_steps` (speed of a short prompt in one pass over that of its tokens one by one: the smallest of all
    short ones of two tokens or more). Further keys: `long` {tokens: {arm: {prefill_tok_s, attention_gops,
    attention_fraction, attention_share (of the pass): summary}}}, `short` {tokens: {arm: {seconds, step_seconds,
    against_steps: summary}}}, `sweep` {tokens: {arm: summary of seconds}}, `operations` {tokens: {attention,
    products}}, `gemm_gops` summary, `memory` {tokens: object of `session_memory.measure`}.

    Raises
    ------
    InputError, AssetError : unknown arms or models, lengths that do not fit; before anything runs.
    """
    from cachequant.assets import models
    from cachequant.kernels import cpu

    names, work = list(checked(names or ARMS, schemes.get)), work or Work()
    asset, threads = models.resolve(model), cpu.physical_cores() if threads is None else threads
    work.check(asset.config.context)
    at_least_one(threads=threads, repeats=repeats)
    load = provenance.load()
    replies, missing = _measure(names, asset, model, work, repeats, threads, progress)
    memory = {
        str(n): session_memory.measure("fp32", model, names[-1], n, min(MEMORY_FLOOR, n), n, threads)
        for n in work.memory
    }
    products = [machine.gops(reply) for job in replies.values() for reply in job[GEMM]]
    long = {n: {name: _long(replies, name, n, asset.config) for name in names} for n in work.long}
    short = {n: {name: _short(replies["steps", n][name]) for name in names} for n in work.short}
    return comparison.assemble(
        {name: _metrics(name, work, long, short) for name in names},
        COMPARED,
        missing,
        provenance.collect(models=[asset])
        | {
            "threads": {"workers": threads},
            "workload": {"long": list(work.long), "short": list(work.short), "repeats": repeats, "batch": 1},
            "load_before": load,
            "load_after": provenance.load(),
        },
        long=_summaries(long),
        short=_summaries(short),
        sweep=_summaries({n: {a: _column(replies["short", n][a], "seconds") for a in names} for n in work.sweep}),
        operations={str(n): traffic.prompt_operations(asset.config, n) for n in work.long},
        gemm_gops=timing.summary(products) if products else None,
        memory=memory,
    )


def _measure(names, asset, model, work: Work, repeats: int, threads: int, progress: Progress) -> tuple[dict, dict]:
    """({(what, tokens): {arm: [reply of each round]}}, {arm: why it is missing})."""
    ids = workloads.prompt_ids(max(n for _, n in work.jobs), asset.config.vocab, asset.tokenizer)
    requests = {n: {"kind": "prefill", "arm": n, "model": model, "threads": threads} for n in names}
    requests[GEMM] = machine.product("fp32", threads)
    replies = {job: {name: [] for name in requests} for job in work.jobs}
    with Crew(requests, threads, dict.fromkeys(requests, 0.02), progress) as crew:
        for r, order in rotations(crew.names, repeats):
            for i, (do, n) in enumerate(work.jobs):
                for name in order:
                    reply = crew.ask(name, "multiply") if name == GEMM else crew.ask(name, do, ids=ids[:n])
                    replies[do, n][name] += [reply] if reply else []
                progress(r * len(work.jobs) + i + 1, repeats * len(work.jobs), f"{n} tokens")
        return replies, {name: reason for name, reason in crew.missing.items() if name != GEMM}


def _long(replies: dict, name: str, n: int, config) -> dict[str, list[float]]:
    """Figures of each round for an arm at one length."""
    found, floats = replies["attention", n][name], map(machine.gops, replies["attention", n][GEMM])
    gops = [traffic.prompt_operations(config, n)["attention"] / reply["attention"] / 1e9 for reply in found]
    return {
        "prefill_tok_s": [n / reply["seconds"] for reply in replies["prefill", n][name]],
        "attention_gops": gops,
        "attention_fraction": [g / f for g, f in zip(gops, floats, strict=False)],
        "attention_share": [reply["attention"] / reply["seconds"] for reply in found],
    }


def _short(found: list[dict]) -> dict[str, list[float]]:
    once, steps = _column(found, "seconds"), _column(found, "steps")
    return {"seconds": once, "step_seconds": steps, "against_steps": [s / o for s, o in zip(steps, once, strict=True)]}


def _column(replies: list[dict], key: str) -> list[float]:
    return [reply[key] for reply in replies]


def _metrics(name: str, work: Work, long: dict, short: dict) -> dict[str, list[float]]:
    last = long[work.long[-1]][name]
    speed, first = last["prefill_tok_s"], long[work.long[0]][name]["prefill_tok_s"]
    several = [short[n][name]["against_steps"] for n in work.short if n > 1]
    return {
        "prefill_tok_s": speed,
        "kept": [b / a for a, b in zip(first, speed, strict=False)],
        "attention_gops": last["attention_gops"],
        "attention_fraction": last["attention_fraction"],
        "against_steps": [min(ratios) for ratios in zip(*several, strict=False)],
    }


def _summaries(tree):
    """Lists of figures become summaries, lengths become names; an arm without figures has none."""
    if isinstance(tree, dict):
        return {str(key): _summaries(value) for key, value in tree.items() if value not in ([], {})}
    return timing.summary(tree)
