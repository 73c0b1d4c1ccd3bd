"""Speed of a prefix cache: each request with it, without it, and against what a perfect one would leave to do.

The arms run interleaved request by request in one process, so a ratio is between passes that are moments apart.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from cachequant.decoder.model import Model, load
from cachequant.errors import InputError
from cachequant.kv.prefix import Request
from cachequant.kv.session import require_stable
from cachequant.study import comparison, conversations, provenance
from cachequant.study.conversations import DialogueSet, PromptSet, Turn
from cachequant.study.crew import Progress, checked, silent
from cachequant.study.prefix_arms import Bound, Cached, NoCache

CACHE, NO_CACHE, BOUND = "cache", "no-cache", "bound"
ARMS = (CACHE, NO_CACHE, BOUND)
COMPARED = ("speed", "overhead_ms")
LOGITS = ("last", "all")
REPEATS = {"no_reuse": 50}  # rounds; its difference is small, its requests are short
Times = tuple[float, float | None]  # seconds of a request, and milliseconds of them in the cache


def prefix(
    model: str = "smollm2-135m",
    name: str = "high_reuse",
    arms: Sequence[str] | None = None,
    scheme: str = "fp32",
    kv: str = "fp32",
    calibration: str = "auto",
    new: int | None = None,
    repeats: int | None = None,
    threads: int | None = None,
    logits: str = "last",
    budget_bytes: int | None = None,
    progress: Progress = silent,
) -> dict:
    """Loads one model and measures it: see `measure`.

    Raises
    ------
    InputError, AssetError : unknown names, numbers that make no sense; before anything runs.
    """
    check(name, arms or ARMS, new, repeats, logits)
    loaded = load(model, scheme, threads=threads, kv=kv, calibration=calibration)
    return measure({"": loaded}, name, arms, new, repeats, logits, budget_bytes, progress)


def measure(
    models: Mapping[str, Model],
    name: str | PromptSet | DialogueSet,
    arms: Sequence[str] | None = None,
    new: int | None = None,
    repeats: int | None = None,
    logits: str = "last",
    budget_bytes: int | None = None,
    progress: Progress = silent,
) -> dict:
    """Interleaved rounds over one set of requests, a fresh cache for each conversation of each round.

    Parameters
    ----------
    models : {label: model}, all of the same tokenizer; an arm is called ``label arm``, or ``arm`` for an empty label.
        The first model writes the answers that are in the prompts.
    name : of `conversations.SETS`, or a set of one's own.
    arms : of ``cache``, ``no-cache``, ``bound`` (the prefill of exactly the tokens that the cache does not have).
    new : tokens of each answer; None is 12 in conversations and none elsewhere.
    repeats : rounds; None is 50 for ``no_reuse`` and 5 elsewhere.
    logits : ``last`` position of the prompt, or ``all`` of those that are computed, as the earlier study measured.
    budget_bytes : of the cache.

    Returns
    -------
    The object of `comparison.assemble`: `speed` is 1 / (mean seconds from token ids to the prompt's logits, lookup and
    insert of the prompt included, over the requests of a round), `overhead_ms` lookup + insert a request. Also
    `requests` [{conversation, turn, prompt, matched, recomputed, hit_rate, inserted, bytes, arms, ratios}], for
    conversations `turns` [{turn, hit_rate, lowest_hit_rate, arms, ratios}] over all of them, `hit_rate` of all prompts'
    tokens, `identical` (whether the logits of every arm had the bits of those without cache, in every round) and
    `retokenized` {turns, differing}, None without a tokenizer.

    Raises
    ------
    InputError : unknown names, numbers that make no sense; before anything runs.
    """
    arms = list(arms or ARMS)
    chosen, answers = conversations.get(name), [] if new is None else [new]
    name = chosen.name
    check(chosen, arms, new, repeats, logits)
    for model in models.values():
        require_stable(model.scheme, "a prefix cache")
        if (needed := chosen.longest(*answers)) > model.config.context:
            raise InputError(
                f"set {name!r} needs {needed} tokens; the context of {model.name} is {model.config.context}"
            )
    repeats = repeats or REPEATS.get(name, 5)
    first, before = next(iter(models.values())), provenance.load()
    work = chosen.conversations(first, *answers)
    bench = _Rounds(models, arms, work, logits, budget_bytes)
    for r in range(repeats):
        bench.run(r)
        progress(r + 1, repeats, name)
    asked = [request for turns in bench.asked for request in turns]
    return comparison.assemble(
        {arm: bench.metrics(arm) for arm in bench.arms},
        COMPARED,
        {},
        provenance.collect(models=models.values())
        | {
            "workload": {"set": name, "repeats": repeats, "batch": 1, "logits": logits, "budget_bytes": budget_bytes},
            "schemes": {label: model.scheme.name for label, model in models.items()},
            "kv": {label: model.kv.name for label, model in models.items()},
            "load_before": before,
            "load_after": provenance.load(),
        },
        set=name,
        requests=[bench.row(c, t) for c, turns in enumerate(work) for t in range(len(turns))],
        turns=[bench.turn(t) for t in range(len(work[0]))] if len(work) > 1 else [],
        hit_rate=sum(q.matched for q in asked) / sum(q.prompt for q in asked),
        identical=bench.identical,
        retokenized=conversations.retokenized(first, work) if first.tokenizer else None,
    )


def check(
    name: str | PromptSet | DialogueSet, arms: Sequence[str], new: int | None, repeats: int | None, logits: str
) -> None:
    """Raise InputError for what `measure` cannot do."""
    conversations.get(name)
    checked(arms, _known)
    for what, value, least in (("new", new, 0), ("repeats", repeats, 1)):
        if value is not None and value < least:
            raise InputError(f"{what} {value!r} has to be at least {least}")
    if logits not in LOGITS:
        raise InputError(f"logits {logits!r} is not one of {', '.join(LOGITS)}")


def _known(arm: str) -> str:
    if arm not in ARMS:
        raise InputError(f"unknown arm {arm!r}; allowed: {', '.join(ARMS)}")
    return arm


class _Rounds:
    """Times of all arms over one set of requests.

    Before the first round every request runs once with a cache and once without: that warms up, tells what the cache
    finds (the same in every round), and gives the bits that all arms have to have.
    """

    def __init__(
        self, models: Mapping[str, Model], arms: list[str], work: list[list[Turn]], logits: str, budget: int | None
    ):
        made = {
            CACHE: lambda m: Cached(m, logits, budget),
            NO_CACHE: lambda m: NoCache(m, logits),
            BOUND: lambda m: Bound(m, logits),
        }
        self._work, self.identical = work, True
        self._arms = {f"{label} {arm}".strip(): (label, made[arm](m)) for label, m in models.items() for arm in arms}
        self._times: dict[str, list[list[list[Times]]]] = {name: [] for name in self._arms}  # round, conversation, turn
        self._known: dict[str, list[list[tuple[Request, np.ndarray]]]] = {}
        for label, model in models.items():
            self._known[label] = [self._learn(turns, made[CACHE](model), made[NO_CACHE](model)) for turns in work]
        self.asked = [[request for request, _ in turns] for turns in self._known[next(iter(models))]]

    def _learn(self, turns: list[Turn], cached: Cached, alone: NoCache) -> list[tuple[Request, np.ndarray]]:
        found = []
        for turn in turns:
            sample, bits = cached.serve(turn), alone.serve(turn, 0).logits
            self.identical &= np.array_equal(sample.logits, bits)
            found.append((sample.request, bits))
        cached.close()
        return found

    def run(self, r: int) -> None:
        """One round; the arm that begins moves on by one with every request."""
        names = list(self._arms)
        times = {name: [[None] * len(turns) for turns in self._work] for name in names}
        for c, turns in enumerate(self._work):
            for t, turn in enumerate(turns):
                cut = (r + t) % len(names)
                for name in [*names[cut:], *names[:cut]]:
                    label, arm = self._arms[name]
                    request, bits = self._known[label][c][t]
                    sample = arm.serve(turn, request.matched)
                    self.identical &= np.array_equal(sample.logits, bits)
                    times[name][c][t] = sample.seconds, sample.request and 1e3 * sample.request.seconds
            for _, arm in self._arms.values():
                arm.close()
        for name in names:
            self._times[name].append(times[name])

    @property
    def arms(self) -> list[str]:
        """Names, labels included."""
        return list(self._arms)

    def metrics(self, name: str) -> dict[str, list[float]]:
        """Of each round, over all its requests."""
        rounds = [[times for turns in found for times in turns] for found in self._times[name]]
        values = {"speed": [len(found) / sum(seconds for seconds, _ in found) for found in rounds]}
        if rounds and rounds[0][0][1] is not None:
            values["overhead_ms"] = [sum(ms for _, ms in found) / len(found) for found in rounds]
        return values

    def row(self, c: int, t: int) -> dict:
        """One request over the rounds."""
        found = self.asked[c][t]
        return {
            "conversation": c,
            "turn": t,
            "prompt": found.prompt,
            "matched": found.matched,
            "recomputed": found.recomputed,
            "hit_rate": found.hit_rate,
            "inserted": found.inserted,
            "bytes": found.nbytes,
        } | self._compared([(c, t)])

    def turn(self, t: int) -> dict:
        """One turn over the rounds of all conversations."""
        found = [turns[t].hit_rate for turns in self.asked]
        return {
            "turn": t,
            "hit_rate": sum(found) / len(found),
            "lowest_hit_rate": min(found),
        } | self._compared([(c, t) for c in range(len(self._work))])

    def _compared(self, places: list[tuple[int, int]]) -> dict:
        values = {}
        for name, rounds in self._times.items():
            times = [found[c][t] for found in rounds for c, t in places]
            values[name] = {"speed": [1 / seconds for seconds, _ in times]}
            values[name]["overhead_ms"] = [ms for _, ms in times if ms is not None]
        found = comparison.assemble(values, COMPARED, {}, {})
        return {"arms": found["arms"], "ratios": found["ratios"]}
