"""The arms of the prefix benchmark: one request with a cache, without one, and what a perfect cache would leave to do.

All have one timing boundary: from token ids to the logits of the prompt, in one process and over one model. What is
said after them (the answer) is run outside the timers, so that the next turn finds it.
"""

import time
from dataclasses import dataclass

import numpy as np

from cachequant.decoder.model import Model
from cachequant.kv.pages import PAGE
from cachequant.kv.prefix import PrefixCache, Request
from cachequant.kv.session import Session
from cachequant.study.conversations import Turn


@dataclass(frozen=True)
class Sample:
    """One request as an arm served it.

    seconds : from the ids to the logits, lookup and insert of the prompt included.
    logits : (V,) of the last token.
    request : what the cache did for the prompt; None in the other arms.
    """

    seconds: float
    logits: np.ndarray
    request: Request | None = None


class NoCache:
    """Every prompt from its first token on."""

    def __init__(self, model: Model, logits: str):
        self._model, self._logits = model, logits

    def serve(self, turn: Turn, matched: int) -> Sample:
        """Run one request; `matched` is how many of its tokens the cache has."""
        clock = time.perf_counter()
        session = self._model.session()
        found = session.extend(turn.prompt, self._logits)
        seconds = time.perf_counter() - clock
        session.close()
        return Sample(seconds, last(found))

    def close(self) -> None:
        """End a conversation."""


class Cached:
    """A prefix cache that is empty at the beginning of a conversation; prompts and answers are stored in it."""

    def __init__(self, model: Model, logits: str, budget_bytes: int | None = None):
        self._model, self._logits, self._budget = model, logits, budget_bytes
        self._cache: PrefixCache | None = None

    def serve(self, turn: Turn, matched: int | None = None) -> Sample:
        if self._cache is None:
            self._cache = PrefixCache(self._model, self._budget)
        clock = time.perf_counter()
        session, request = self._cache.session(turn.prompt)
        found = session.extend(turn.prompt[session.position :], self._logits)
        self._cache.insert(session, request)
        seconds = time.perf_counter() - clock
        with session:
            if turn.answer:
                say(session, turn.answer)
                self._cache.insert(session)
        return Sample(seconds, last(found), request)

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
        self._cache = None


class Bound:
    """Only the tokens that the cache does not have, in a session that holds the others in pages of its own."""

    def __init__(self, model: Model, logits: str):
        self._model, self._logits = model, logits
        self._before: list[Session] = []

    def serve(self, turn: Turn, matched: int) -> Sample:
        session = self._prepared(turn.prompt[:matched])
        clock = time.perf_counter()
        found = session.extend(turn.prompt[matched:], self._logits)
        seconds = time.perf_counter() - clock
        say(session, turn.answer)
        self._before.append(session)
        return Sample(seconds, last(found))

    def _prepared(self, ids: list[int]) -> Session:
        """A session with these tokens: the full pages of an earlier one, the others computed, and nothing to copy."""
        full = len(ids) - len(ids) % PAGE
        donor = next((s for s in self._before if s.stored >= full and s.ids[:full] == ids[:full]), None)
        session = donor.fork(full) if donor else self._model.session()
        if session.position < len(ids):
            session.extend(ids[session.position :], "none")
        return session

    def close(self) -> None:
        while self._before:
            self._before.pop().close()


def say(session: Session, answer: list[int]) -> None:
    """Append a generated answer as generating leaves it: its last token has not been run."""
    if len(answer) > 1:
        session.extend(answer[:-1], "none")
    session.append(answer[-1:])


def last(logits: np.ndarray) -> np.ndarray:
    """The last token's logits, of ``last`` or ``all``."""
    return logits if logits.ndim == 1 else logits[-1]
