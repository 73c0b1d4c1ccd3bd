"""Number formats, page formats and prefix reuse at once: what each buys alone, and all of them together.

Two optimizations are independent if the speed-up of both is the product of their speed-ups. All arms answer the same
requests in turn within one process; each ratio is between passes of one round.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from cachequant.decoder.model import Model
from cachequant.errors import InputError
from cachequant.kv.checks import require_stable
from cachequant.kv.prefix import PrefixCache
from cachequant.study import arms, comparison, conversations, quality_rows, timing, variants
from cachequant.study.conversations import PromptSet
from cachequant.study.crew import checked
from cachequant.study.prefix_bench import CACHE, NO_CACHE

METRICS = ("first_speed", "decode_tok_s", "request_speed")
BASE = "fp32"


class Alone(arms.Loaded):
    """A variant that runs every prompt from its first token on."""

    first: np.ndarray  # logits of the last prompt

    def start(self, ids: list[int]) -> np.ndarray:
        self._session = self._model.session()
        self.first = self._session.extend(ids)
        return self.first

    def end(self) -> None:
        """After a request."""
        if self._session is not None:
            self._session.close()

    def forget(self) -> None:
        """After a round."""


class Reusing(Alone):
    """A variant with a prefix cache, which is empty at the beginning of a round."""

    def __init__(self, model: Model):
        super().__init__(model)
        self._cache = PrefixCache(model)
        self.matched = 0  # tokens of the last prompt

    def start(self, ids: list[int]) -> np.ndarray:
        self._session, request = self._cache.session(ids)
        self.first = self._session.extend(ids[request.matched :])
        self._cache.insert(self._session, request)
        self.matched = request.matched
        return self.first

    def forget(self) -> None:
        self._cache.close()


def measure(model: Model, names: Sequence[str], prompts: str, new: int, repeats: int) -> dict:
    """Requests of a prompt set, answered with `new` greedy tokens each, in every variant with and without a cache.

    Parameters
    ----------
    model : of any scheme.
    names : schemes with page formats, as in ``int8/k4v4``; ``fp32`` is what the others are compared with.
    prompts : a set of independent prompts of `conversations.SETS`.
    repeats : rounds over the set, each with empty caches.

    Returns
    -------
    The object of `comparison.assemble` with arms ``int8/k4v4 cache`` and so on. Over the requests of a round,
    `first_speed` is 1 / (mean seconds to the first token, lookup and insert included), `request_speed` 1 / (mean
    seconds to the last one), `decode_tok_s` the speed in between. Also `together` (see `together`), `hit_rate`
    {variant: of all prompts' tokens}, `identical`: whether first logits and tokens of every variant are the same bits
    with and without cache, in every round, and `agreed` {variant: tokens of all answers that are those of fp32 before
    the first that differs}.

    Raises
    ------
    InputError : no ``fp32`` among the names, unknown or unsuitable ones, one without its parts (``int8/k4v4`` needs
        ``int8`` and ``fp32/k4v4``), fewer than two new tokens.
    """
    check(names, prompts, new)
    work = [turn.prompt for turn in conversations.get(prompts).conversations(model)[0]]
    loaded = {name: variants.get(name).of(model)[0] for name in names}
    rounds = _Rounds(loaded, work, new)
    for r in range(repeats):
        rounds.run(r)
    found = comparison.assemble(
        rounds.values,
        METRICS,
        {},
        {"workload": {"set": prompts, "new": new, "repeats": repeats, "batch": 1}},
        set=prompts,
        requests=len(work),
        hit_rate={n: sum(m) / sum(map(len, work)) for n, m in rounds.matched.items()},
        identical=rounds.identical,
        agreed={n: sum(map(quality_rows.agreed, a, rounds.answers[BASE])) for n, a in rounds.answers.items()},
    )
    return found | {"together": {name: together(found, name) for name in loaded if name != BASE}}


def check(names: Sequence[str], prompts: str, new: int) -> None:
    """Raises InputError for what `measure` cannot do; before anything runs."""
    made = checked(names, variants.get)
    if BASE not in made or new < 2 or not isinstance(conversations.get(prompts), PromptSet):
        raise InputError(
            f"variants {', '.join(made)} on {prompts!r} with {new} new tokens: needed are {BASE!r}, a set of "
            "independent prompts and at least 2 new tokens"
        )
    for name, variant in made.items():
        require_stable(variant.scheme, "a prefix cache")
        for part in _alone(name).values():
            if part.rpartition(" ")[0] not in made:
                raise InputError(f"{name!r} can only be judged beside {part.rpartition(' ')[0]!r}, which is not named")


class _Rounds:
    """Values of all arms; the arm that begins moves on by one with every request."""

    def __init__(self, models: dict[str, Model], work: list[list[int]], new: int):
        self._work, self._new, self.identical = work, new, True
        made = {CACHE: Reusing, NO_CACHE: Alone}
        self._arms = {f"{name} {arm}": (name, arm, kind(m)) for name, m in models.items() for arm, kind in made.items()}
        self.values = {name: {metric: [] for metric in METRICS} for name in self._arms}
        self.answers: dict[str, list[list[int]]] = {}
        self.matched: dict[str, list[int]] = {}
        for _, _, engine in self._arms.values():
            arms.generate(engine, work[0], 2)
            engine.end()
            engine.forget()

    def run(self, r: int) -> None:
        timings = {name: [] for name in self._arms}
        answers, firsts = {name: [] for name in self._arms}, {name: [] for name in self._arms}
        self.matched = {name: [] for name, _, _ in self._arms.values()}
        names = list(self._arms)
        for t, ids in enumerate(self._work):
            cut = (r + t) % len(names)
            for name in [*names[cut:], *names[:cut]]:
                variant, arm, engine = self._arms[name]
                run = arms.generate(engine, ids, self._new)
                engine.end()
                timings[name].append(run.timing)
                answers[name].append(run.ids)
                firsts[name].append(engine.first)
                if arm == CACHE:
                    self.matched[variant].append(engine.matched)
        for name, (variant, _, engine) in self._arms.items():
            engine.forget()
            self._add(name, timings[name])
            other = f"{variant} {NO_CACHE}"
            self.identical &= np.array_equal(firsts[name], firsts[other]) and answers[name] == answers[other]
            self.answers[variant] = answers[name]

    def _add(self, name: str, found: list[timing.GenerationTiming]) -> None:
        first, decode = sum(t.prefill_seconds for t in found), sum(t.decode_seconds for t in found)
        steps = sum(len(t.token_seconds) for t in found)
        speeds = len(found) / first, steps / decode, len(found) / (first + decode)
        for metric, speed in zip(METRICS, speeds, strict=True):
            self.values[name][metric].append(speed)


def together(bench: dict, name: str) -> dict:
    """What a variant with a cache gains over fp32 without one, beside the product of what each part gains alone.

    Parameters
    ----------
    bench : object of `measure`; has the parts of the variant, too.
    name : of the variant.

    Returns
    -------
    {metric: {"parts": {"scheme" | "pages" | "cache": gain}, "product", "joint", "kept": joint / product}}, each
    {median, low, high} over the rounds; 1 in `kept` is independence.
    """
    return {metric: _gains(bench["arms"], metric, _alone(name), f"{name} {CACHE}") for metric in METRICS}


def _alone(name: str) -> dict[str, str]:
    """{part: the arm in which a variant's part is the only one that differs from fp32 without a cache}."""
    variant, alone = variants.get(name), {"cache": f"{BASE} {CACHE}"}
    if (pages := variant.kv.name) != BASE:
        alone = {"pages": f"{BASE}/{pages} {NO_CACHE}"} | alone
    if (scheme := variant.scheme.name) != BASE:
        alone = {"scheme": f"{scheme} {NO_CACHE}"} | alone
    return alone


def _gains(found: dict, metric: str, alone: dict[str, str], joint: str) -> dict:
    base = found[f"{BASE} {NO_CACHE}"][metric]["values"]

    def gain(arm: str) -> list[float]:
        return [v / b for v, b in zip(found[arm][metric]["values"], base, strict=True)]

    parts, both = {part: gain(arm) for part, arm in alone.items()}, gain(joint)
    product = [prod(values) for values in zip(*parts.values(), strict=True)]
    kept = [j / p for j, p in zip(both, product, strict=True)]
    return {
        "parts": {part: _short(values) for part, values in parts.items()},
        "product": _short(product),
        "joint": _short(both),
        "kept": _short(kept),
    }


def _short(values: list[float]) -> dict[str, float]:
    found = timing.summary(values)
    return {key: found[key] for key in ("median", "low", "high")}
