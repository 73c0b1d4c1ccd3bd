"""Prefill and decode speed of several engines on the same token ids, interleaved round by round."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from cachequant.errors import InputError
from cachequant.study import arms, comparison, peers, provenance, workloads
from cachequant.study.checks import at_least_one
from cachequant.study.crew import Crew, Progress, checked, rotations, silent
from cachequant.study.timing import PRICE, BenchResult, GenerationTiming
from cachequant.study.workloads import Workload

WARM_UP_TOKENS, NEW_TOKENS = 4, 40
COMPARED = ("prefill_tok_s", "decode_tok_s")  # of these there are ratios
SHOWN = ("latency_mean_ms", "latency_p50_ms", "latency_p90_ms", "wall_seconds", "cost_per_thousand")


class DecodeBench:
    """Arms loaded once, at the first measurement, for any number of workloads.

    Parameters
    ----------
    model : a model's name.
    arms : names of `cachequant.study.arms`.
    threads : of every arm; None is one a physical core.
    progress : called with (done, total, what).
    """

    compared = COMPARED

    def __init__(
        self,
        model: str,
        names: Sequence[str] = arms.DEFAULT,
        threads: int | None = None,
        progress: Progress = silent,
    ):
        from cachequant.assets import models
        from cachequant.kernels import cpu

        self._arms = checked(names, arms.get)
        self.threads = cpu.physical_cores() if threads is None else threads
        at_least_one(threads=self.threads)
        self.asset = models.resolve(model)
        self._model, self._progress = model, progress
        self._llc = cpu.last_level_bytes()
        self._crew: Crew | None = None

    def measure(self, prompt: int | Workload = 270, new: int | None = None, repeats: int = 5) -> dict:
        """Interleaved repetitions of one workload.

        Parameters
        ----------
        prompt : a profile of `cachequant.study.workloads`, or a number of tokens.
        new : tokens to generate, the first one by the prefill; None is the profile's number, or 40.
        repeats : rounds. Arms with a time limit run in the first one only.

        Returns
        -------
        The object of `comparison.assemble`: metrics `prefill_tok_s` and `decode_tok_s` (without the first token), and
        without ratios `latency_mean_ms`, `latency_p50_ms`, `latency_p90_ms`, `wall_seconds`, `cost_per_thousand`, and
        from engines that know them the `bytes` of the prompt's keys and values; also
        `partial` {arm: what was cut short}, `runs` {arm: [{prefill_seconds, token_seconds, ids, complete}]} and
        `facts` {arm: {weight_bytes, from_memory, seconds (to load), rss_bytes, peak_rss_bytes}}; with `from_memory`
        the weights are at least twice the last-level cache, so that every decoded token reads them from memory.
        """
        ids, new = self._workload(prompt, new)
        at_least_one(repeats=repeats)
        crew, load = self.crew, provenance.load()
        self._warm_up(ids, new)
        runs, partial = self._rounds(ids, new, repeats)
        facts = {name: self._facts(name) for name in crew.names}
        return comparison.assemble(
            {name: _metrics(found, len(ids)) for name, found in runs.items()},
            self.compared,
            crew.missing,
            provenance.collect(models=[self.asset])
            | {
                "threads": {"workers": self.threads},
                "workload": {"prompt": len(ids), "new": new, "repeats": repeats, "batch": 1},
                "load_before": load,
                "load_after": provenance.load(),
                "last_level_cache_bytes": self._llc,
                "price": asdict(PRICE),
                "engines": {name: f["engine"] for name, f in crew.facts.items() if "engine" in f},
            },
            partial=partial,
            runs={name: [_kept(run) for run in found] for name, found in runs.items()},
            facts=facts,
        )

    def logits(self, arm: str, ids: list[int], forced: Sequence[int] = ()) -> np.ndarray | None:
        """(1 + forced, vocab) float32 logits of an arm after a prompt and each forced token; None if it failed."""
        reply = self.crew.ask(arm, "logits", ids=ids, forced=list(forced))
        return None if reply is None else np.asarray(reply["logits"], np.float32)

    @property
    def crew(self) -> Crew:
        """The workers, started when they are first needed."""
        if self._crew is None:
            self._crew = self._load()
        return self._crew

    def _workload(self, prompt: int | Workload, new: int | None) -> tuple[list[int], int]:
        ids = self.prompt_ids(prompt)
        if new is None:
            new = prompt.new_tokens if isinstance(prompt, Workload) else NEW_TOKENS
        at_least_one(new_tokens=new)
        if len(ids) + new > self.asset.config.context:
            raise InputError(f"{len(ids)} + {new} tokens do not fit the context of {self.asset.config.context}")
        return ids, new

    def prompt_ids(self, prompt: int | Workload) -> list[int]:
        """Token ids of a workload or of so many tokens, the same for every arm."""
        vocab, tokenizer = self.asset.config.vocab, self.asset.tokenizer
        if isinstance(prompt, Workload):
            return prompt.ids(vocab, tokenizer)
        return workloads.prompt_ids(prompt, vocab, tokenizer)

    def _load(self) -> Crew:
        missing = peers.prepare(self._arms.values(), self._model, self.asset, self._progress)
        how = {"kind": "decode", "model": self._model, "threads": self.threads}
        crew = Crew(
            {name: {"arm": name, **how} for name in self._arms if name not in missing},
            self.threads,
            {name: arm.settle_seconds for name, arm in self._arms.items()},
            self._progress,
        )
        crew.missing |= missing
        return crew

    def _facts(self, name: str) -> dict:
        facts = {key: value for key, value in self._crew.facts[name].items() if key != "engine"}
        memory = self._crew.ask(name, "memory") or {}
        return {**facts, **memory, "from_memory": facts["weight_bytes"] >= 2 * self._llc}

    def _warm_up(self, ids: list[int], new: int) -> None:
        for i, name in enumerate(self._crew.names):
            self._progress(i, len(self._crew.names), f"warming up {name}")
            arm = self._arms[name]
            if not arm.slow:
                self._crew.ask(name, "generate", ids=ids, new=min(new, WARM_UP_TOKENS))

    def _rounds(self, ids: list[int], new: int, repeats: int) -> tuple[dict[str, list[dict]], dict[str, str]]:
        runs, partial = {name: [] for name in self._arms}, {}
        total, done = repeats * len(self._crew.names), 0
        for r, order in rotations(self._crew.names, repeats):
            for name in order:
                limit = self._arms[name].limit_seconds
                if r == 0 or not self._arms[name].slow:
                    run = self._crew.ask(name, "generate", ids=ids, new=new, limit_seconds=limit)
                    if run is not None:
                        runs[name].append(run)
                        if not run["complete"]:
                            partial[name] = _what_was_cut(run, new, limit)
                done += 1
                self._progress(done, total, name)
        return runs, partial

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()

    def __enter__(self) -> "DecodeBench":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def _metrics(runs: list[dict], prompt: int) -> dict[str, list[float]]:
    """Figures of each round; a prefill that was stopped counts the layers that it finished, and has nothing else."""
    found = {metric: [] for metric in (*COMPARED, *SHOWN, "bytes")}
    for run in runs:
        timing = GenerationTiming(**run["timing"])
        if run["layers"]:
            done, total = run["layers"]
            if done:
                found["prefill_tok_s"].append(prompt * done / total / timing.prefill_seconds)
            continue
        result = BenchResult.of(timing)
        for metric, values in found.items():
            value = run.get("cache_bytes") if metric == "bytes" else getattr(result, metric)
            if value is not None:
                values.append(value)
    return found


def _kept(run: dict) -> dict:
    timing = run["timing"]
    return {
        "prefill_seconds": timing["prefill_seconds"],
        "token_seconds": timing["token_seconds"],
        "ids": run["ids"],
        "complete": run["complete"],
    }


def _what_was_cut(run: dict, new: int, limit: float) -> str:
    if run["layers"]:
        done, total = run["layers"]
        return f"prefill stopped at {limit:.0f} s after {done} of {total} layers; its speed is that of these layers"
    return f"stopped at {limit:.0f} s after {len(run['ids'])} of {new} tokens"
