"""What a session's branches, rewinds and snapshots cost, by tokens and page format.

All formats of one scheme are measured in turn within every round of one process. A branch and a restored session are
compared with the very same tokens run without them, hidden state by hidden state: any difference is counted, none is
allowed by the decoder's determinism.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cachequant.decoder.model import Model
from cachequant.errors import InputError
from cachequant.kv.pages import PAGE
from cachequant.kv.session import Session
from cachequant.study import timing
from cachequant.study.crew import rotations

WARM = 2 * PAGE + 1  # tokens that make every kernel run once, those of codes included
PLACES = ("end", "boundary", "inside")
FORK = ("fork_seconds", "rewind_seconds", "first_seconds", "step_seconds")
SNAPSHOT = ("prefill_seconds", "save_seconds", "load_seconds", "next_seconds")


def places(tokens: int) -> dict[str, int]:
    """Where a session of so many tokens is cut: at its end, at the end of a page in the middle, and a token before it.

    Raises
    ------
    InputError : fewer tokens than two pages, or a last page that is empty or about to be full.
    """
    if tokens < 2 * PAGE or not 1 <= tokens % PAGE < PAGE - 1:
        raise InputError(
            f"a session of {tokens} tokens: give at least {2 * PAGE}, 1 to {PAGE - 2} of them in a last page of {PAGE}"
        )
    middle = PAGE * max(tokens // (2 * PAGE), 2)
    return {"end": tokens, "boundary": middle, "inside": middle - 1}


class SessionCosts:
    """One model in several page formats, with a session of the same tokens in each.

    Parameters
    ----------
    model : of any format.
    formats : names of page formats.
    ids : at least the most tokens that are measured, and two more.
    folder : of the snapshots.
    """

    def __init__(self, model: Model, formats: Sequence[str], ids: Sequence[int], folder: Path):
        self._models = {name: model.with_kv(name) for name in formats}
        self._ids, self._folder = list(ids), folder
        for warm in self._models.values():
            with warm.session() as session:
                _logits(warm, session, self._ids[:WARM])
                _logits(warm, session, self._ids[:1])

    def measure(self, tokens: int, repeats: int, long_repeats: int) -> dict:
        """Costs at one length.

        Parameters
        ----------
        repeats : rounds of branches and rewinds.
        long_repeats : rounds of prefill, save and load.

        Returns
        -------
        {format: {"forks": {place: {"at", "recomputed", "copied_bytes", "same", metric of `FORK`: summary}},
        "snapshot": {metric of `SNAPSHOT`: summary, "against_prefill": ratio, "same"},
        "bytes": {"pages", "file", "token"}}}; `same` says whether all hidden states are those of one prefill.
        """
        cuts = places(tokens)
        if len(self._ids) < tokens + 2:
            raise InputError(f"{tokens} tokens and two more are needed, there are {len(self._ids)}")
        found = {name: {"forks": {p: {"at": at} for p, at in cuts.items()}} for name in self._models}
        sessions, hidden = self._snapshots(tokens, long_repeats, found)
        times = {n: {p: {metric: [] for metric in FORK} for p in PLACES} for n in self._models}
        for r, order in rotations(list(self._models), repeats + 1):
            for name in order:
                for place, at in cuts.items():
                    spent, facts = self._branch(sessions[name], at, hidden[name])
                    found[name]["forks"][place] |= facts
                    for metric, seconds in spent.items():
                        times[name][place][metric] += [seconds] if r else []  # the first round warms up
        for name, session in sessions.items():
            for place in PLACES:
                found[name]["forks"][place] |= {m: timing.summary(v) for m, v in times[name][place].items()}
            session.close()
        return found

    def _snapshots(self, tokens: int, repeats: int, found: dict) -> tuple[dict[str, Session], dict[str, np.ndarray]]:
        """Prefill, save and load in turn; the sessions and hidden states of the last round."""
        times = {n: {metric: [] for metric in SNAPSHOT} for n in self._models}
        sessions, hidden, same = {}, {}, dict.fromkeys(self._models, True)
        for _, order in rotations(list(self._models), repeats):
            for name in order:
                if name in sessions:
                    sessions[name].close()
                spent, sessions[name], hidden[name], equal = self._restore(name, tokens)
                same[name] &= equal
                for metric, seconds in spent.items():
                    times[name][metric].append(seconds)
        for name, values in times.items():
            found[name]["snapshot"] = {m: timing.summary(v) for m, v in values.items()} | {
                "against_prefill": timing.ratio(values["prefill_seconds"], values["next_seconds"]),
                "same": same[name],
            }
            size = self._path(name).stat().st_size
            pages = sessions[name].nbytes
            found[name]["bytes"] = {"pages": pages, "file": size, "token": pages / tokens}
            self._path(name).unlink()
        return sessions, hidden

    def _restore(self, name: str, tokens: int) -> tuple[dict[str, float], Session, np.ndarray, bool]:
        model, path = self._models[name], self._path(name)
        session, spent = model.session(), {}
        hidden, spent["prefill_seconds"] = _logits(model, session, self._ids[: tokens + 1])
        session.rewind(tokens)
        _, spent["save_seconds"] = _timed(lambda: session.save(path))
        restored, spent["load_seconds"] = _timed(lambda: model.load_session(path))
        with restored:
            state, seconds = _logits(model, restored, self._ids[tokens : tokens + 1])
        spent["next_seconds"] = spent["load_seconds"] + seconds
        return spent, session, hidden, np.array_equal(state[-1], hidden[-1])

    def _branch(self, session: Session, at: int, hidden: np.ndarray) -> tuple[dict[str, float], dict]:
        model, spent = session.model, {}
        with session.fork() as rewound:
            _, spent["rewind_seconds"] = _timed(lambda: rewound.rewind(at))
        branch, spent["fork_seconds"] = _timed(lambda: session.fork(at))
        with branch:
            stored, shared = branch.stored, set(branch.pages)
            state, spent["first_seconds"] = _logits(model, branch, self._ids[at : at + 1])
            same = np.array_equal(state[-1], hidden[at])
            copied = stored % PAGE > 0 and branch.pages[stored // PAGE] not in shared
            _, spent["step_seconds"] = _logits(model, branch, self._ids[at + 1 : at + 2])
        return spent, {
            "recomputed": at - stored,
            "copied_bytes": model.pool.page_bytes if copied else 0,
            "same": same,
        }

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"


def _timed(call: Callable):
    clock = time.perf_counter()
    made = call()
    return made, time.perf_counter() - clock


def _logits(model: Model, session: Session, ids: Sequence[int]) -> tuple[np.ndarray, float]:
    """Hidden states of the tokens, and the seconds from ids to the logits of the last one."""
    clock = time.perf_counter()
    hidden = session.extend(ids, "hidden")
    model.head(hidden[-1:])
    return hidden, time.perf_counter() - clock
