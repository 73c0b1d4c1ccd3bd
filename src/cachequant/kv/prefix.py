"""The prefix cache: what earlier requests computed for the tokens that a new one begins with.

A hit takes pages by reference; nothing is copied but the page of the cut, when it is written to. By the decoder's
determinism the output is that of a run without cache, bit for bit.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachequant.errors import InputError
from cachequant.kv.checks import require_stable
from cachequant.kv.pages import BudgetError
from cachequant.kv.session import Session
from cachequant.kv.tree import PageTree, encode

if TYPE_CHECKING:
    from cachequant.decoder.model import Model


@dataclass
class Request:
    """What the cache did for one request.

    prompt, matched : tokens of the prompt, and those of them that were not computed again.
    inserted, evicted : pages that were stored for it and given back for it.
    nbytes : of the pages that were stored.
    seconds : spent in the cache: looking up, and inserting.
    """

    prompt: int
    matched: int
    inserted: int = 0
    evicted: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    @property
    def recomputed(self) -> int:
        """Tokens of the prompt that were computed."""
        return self.prompt - self.matched

    @property
    def hit_rate(self) -> float:
        """Fraction of the prompt that was not computed again."""
        return self.matched / self.prompt


@dataclass(frozen=True)
class Statistics:
    """All requests so far, and the pages at this moment: `free` + `evictable` + `in_use` are those of the budget.

    requests, prompt, matched : requests, tokens of their prompts, and those of them that were not computed again.
    inserted, evicted : pages.
    seconds : spent in the cache.
    pages, evictable, in_use : pages stored, those that no session and no pin holds, and the others.
    free : exact pages that the budget allows beside them; None without a budget.
    nbytes : of the pages stored.
    """

    requests: int
    prompt: int
    matched: int
    inserted: int
    evicted: int
    seconds: float
    pages: int
    evictable: int
    in_use: int
    free: int | None
    nbytes: int

    @property
    def recomputed(self) -> int:
        """Tokens of prompts that were computed."""
        return self.prompt - self.matched

    @property
    def hit_rate(self) -> float:
        """Fraction of all prompts' tokens that were not computed again; 0 before the first request."""
        return self.matched / self.prompt if self.prompt else 0.0


class PrefixCache:
    """Pages of one model's earlier prompts and answers, safe to use from several threads.

    Parameters
    ----------
    model : whose keys and values these are; `Model.fingerprint` binds them to it.
    budget_bytes : most bytes of cached pages; None for no limit. Sessions hold pages of their own beside them.

    Raises
    ------
    InputError : a budget below one page, or a scheme whose keys and values depend on how tokens were cut.

    Examples
    --------
    >>> cache = PrefixCache(model, budget_bytes=200_000_000)  # doctest: +SKIP
    >>> model.generate("The history of Paris", 20, cache=cache).cache.matched  # doctest: +SKIP
    0
    """

    def __init__(self, model: "Model", budget_bytes: int | None = None):
        require_stable(model.scheme, "a prefix cache")
        size = model.pool.page_bytes
        if budget_bytes is not None and budget_bytes < size:
            raise InputError(f"a budget of {budget_bytes} bytes holds no page; one takes {size}")
        self.model, self.fingerprint = model, model.fingerprint
        self._pool = model.pool
        self._tree = PageTree(self._pool, budget_bytes)
        self._pins: dict[tuple[int, ...], Session] = {}
        self._requests = self._prompt = self._matched = 0
        self._seconds = 0.0

    def require(self, model: "Model") -> None:
        """Raises InputError if the cached keys and values are not those of `model`."""
        if model.fingerprint != self.fingerprint:
            raise InputError(
                f"this prefix cache belongs to {self.model.name} under {self.model.scheme.name!r} (fingerprint "
                f"{self.fingerprint[:12]}), not to {model.name} under {model.scheme.name!r} ({model.fingerprint[:12]})"
            )

    def session(self, prompt: str | Sequence[int]) -> tuple[Session, Request]:
        """A session with the longest known prefix of a prompt, and what was found.

        The session's `position` says how many tokens that is: always less than the prompt, whose last token has to be
        run for its logits. The caller extends it by the rest and closes it.

        Raises
        ------
        InputError : an empty prompt, or ids outside the vocabulary.
        """
        ids = self.model.encode(prompt)
        clock = time.perf_counter()
        with self._pool.lock:
            session = self._matching(ids, len(ids) - 1)
            request = Request(len(ids), session.position)
            self._requests += 1
            self._prompt += request.prompt
            self._matched += request.matched
            self._spent(request, clock)
        return session, request

    def insert(self, session: Session, request: Request | None = None) -> None:
        """Store what a session has computed, as far as the budget allows; it can be used further.

        Parameters
        ----------
        session : of this cache's model; its pages are shared, and those that the cache had already are taken from it.
        request : counts what was done.

        Raises
        ------
        InputError : a session of another model.
        """
        if session.model is None:
            raise InputError("a session that was made without a model cannot be cached: use Model.session()")
        self.require(session.model)
        if session.model.pool is not self._pool:
            raise InputError("the session's pages belong to another copy of the model: use PrefixCache.session()")
        clock = time.perf_counter()
        with self._pool.lock:
            before = self._tree.inserted, self._tree.evicted, self._tree.inserted_bytes
            ids = encode(session.ids[: session.stored])
            session.adopt(self._tree.path(ids))
            self._tree.insert(ids, session.pages)
            inserted, evicted = self._tree.inserted - before[0], self._tree.evicted - before[1]
            if request is not None:
                request.inserted += inserted
                request.evicted += evicted
                request.nbytes += self._tree.inserted_bytes - before[2]
            self._spent(request, clock)

    def pin(self, prompt: str | Sequence[int]) -> None:
        """Keep the pages of a prompt, such as a system prompt, until `unpin`; computes them if they are not cached.

        Raises
        ------
        InputError : an empty prompt, or more tokens than the context holds.
        BudgetError : the budget does not hold the prompt beside what is in use.
        """
        ids = self.model.encode(prompt)
        with self._pool.lock:
            if tuple(ids) in self._pins:
                return
            session = self._matching(ids, len(ids))
        with session:
            if session.position < len(ids):
                session.extend(ids[session.position :], "none")
                self.insert(session)
            with self._pool.lock:
                held = self._matching(ids, len(ids))
                if held.position < len(ids):
                    held.close()
                    raise BudgetError(
                        f"the budget of {self._tree.capacity} bytes cannot keep a prompt of {len(ids)} tokens: "
                        f"{self._tree.evictable} pages can be evicted"
                    )
                if tuple(ids) in self._pins:  # another thread was first
                    held.close()
                else:
                    self._pins[tuple(ids)] = held

    def unpin(self, prompt: str | Sequence[int]) -> None:
        """Let the pages of a pinned prompt be evicted again. Raises InputError if it is not pinned."""
        ids = tuple(self.model.encode(prompt))
        with self._pool.lock:
            if ids not in self._pins:
                raise InputError(f"a prompt of {len(ids)} tokens is not pinned; {len(self._pins)} others are")
            self._pins.pop(ids).close()

    def evict(self, pages: int | None = None) -> int:
        """Give back so many pages (None: all) that nobody holds, those not used for the longest time first.

        Returns how many there were.
        """
        with self._pool.lock:
            before = self._tree.evicted
            while (pages is None or self._tree.evicted - before < pages) and self._tree.evict():
                pass
            return self._tree.evicted - before

    @property
    def statistics(self) -> Statistics:
        """Totals, and the pages at this moment."""
        with self._pool.lock:
            tree, evictable = self._tree, self._tree.evictable
            return Statistics(
                requests=self._requests,
                prompt=self._prompt,
                matched=self._matched,
                inserted=tree.inserted,
                evicted=tree.evicted,
                seconds=self._seconds,
                pages=len(tree),
                evictable=evictable,
                in_use=len(tree) - evictable,
                free=None if tree.capacity is None else (tree.capacity - tree.nbytes) // self._pool.page_bytes,
                nbytes=tree.nbytes,
            )

    def walk(self) -> list[tuple[tuple[int, ...], int]]:
        """Token ids from the root, and page, of everything stored: for drawings and tests."""
        with self._pool.lock:
            return list(self._tree.walk())

    def close(self) -> None:
        """Unpin and give back everything that no session holds."""
        with self._pool.lock:
            while self._pins:
                self._pins.popitem()[1].close()
            self.evict()

    def __enter__(self) -> "PrefixCache":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _matching(self, ids: list[int], most: int) -> Session:
        pages, tokens = self._tree.match(ids[:most])
        session = self.model.session()
        session.share(ids[:tokens], pages, tokens)
        return session

    def _spent(self, request: Request | None, clock: float) -> None:
        seconds = time.perf_counter() - clock
        self._seconds += seconds
        if request is not None:
            request.seconds += seconds
