"""A session: token ids, and the page table that holds their keys and values.

The ids are the truth. Pages are shared by reference between branches and copied when a shared one is written to, which
only the last page of a branch ever is (copy-on-write blocks: PagedAttention, Kwon et al. 2023, section 4.4).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cachequant.decoder import generation
from cachequant.decoder.forward import Decoder
from cachequant.decoder.generation import Generation
from cachequant.errors import InputError
from cachequant.kv.checks import check_ids, require_stable
from cachequant.kv.pages import PAGE, PagePool
from cachequant.kv.table import PageTable

if TYPE_CHECKING:
    from cachequant.decoder.model import Model

LOGITS = ("last", "all", "hidden", "none")
CODED_CHUNK = 128  # tokens a pass over coded pages: bounds the exact pages that it needs


@dataclass(frozen=True)
class Replay:
    """A regeneration of a session's tokens from position `start` on.

    ids : what was generated.
    difference : the first position whose token differs or was not generated; None if all are the same.
    """

    start: int
    ids: list[int]
    difference: int | None


class Session:
    """Tokens that a decoder has seen, as ids and as K/V in reference-counted pages of 32 tokens.

    A session is used by one thread at a time; sessions that share pages may be used by several.

    Parameters
    ----------
    decoder : packed weights.
    pool : where pages come from; they go back on `close()` or when the session is collected.
    model : what `decoder` belongs to; needed to generate and to save.
    """

    def __init__(self, decoder: Decoder, pool: PagePool, model: "Model | None" = None):
        self._decoder, self._pool, self.model = decoder, pool, model
        self.ids: list[int] = []
        self._stored = 0
        self._table = PageTable(pool)

    @property
    def position(self) -> int:
        """How many tokens there are; the next one gets this absolute position."""
        return len(self.ids)

    @property
    def stored(self) -> int:
        """How many of them have keys and values; those of the others are computed with the next `extend`."""
        return self._stored

    @property
    def pages(self) -> tuple[int, ...]:
        """Page ids of the stored tokens, in order."""
        return tuple(self._table.pages)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages in use, slack of the last one included, shared ones counted like others."""
        return self._table.nbytes

    def extend(self, ids, logits: str = "last") -> np.ndarray | None:
        """Run tokens through the decoder and keep their keys and values.

        Parameters
        ----------
        ids : (T,) token ids, T >= 1, that fit the context.
        logits : ``last`` -> (V,) of the last token, ``all`` -> (T, V), ``hidden`` -> (T, width) final hidden states for
            `Model.head`, ``none`` -> None.

        Raises
        ------
        InputError : no tokens, an id outside the vocabulary, more tokens than the context holds, an unknown `logits`.
        """
        if logits not in LOGITS:
            raise InputError(f"logits {logits!r} is not one of {', '.join(LOGITS)}")
        ids = self._fitting(ids)
        waiting = self.ids[self._stored :]
        run = np.concatenate([np.array(waiting, np.int64), ids]) if waiting else ids
        hidden = self._run(run)[len(waiting) :]
        self.ids.extend(ids.tolist())
        if logits == "hidden":
            return hidden
        if logits == "none":
            return None
        return self._decoder.logits(hidden) if logits == "all" else self._decoder.logits(hidden[-1:])[0]

    def _run(self, ids: np.ndarray) -> np.ndarray:
        """Final hidden states of the tokens after the stored ones; nothing is stored if one of the passes fails."""
        begin, parts = self._stored, []
        chunk = CODED_CHUNK if self._pool.coding and self._decoder.scheme.chunk_stable else len(ids)
        try:
            for i in range(0, len(ids), chunk):
                part = ids[i : i + chunk]
                pages = self._table.reserve(self._stored, self._stored + len(part))
                parts.append(self._decoder.forward(part, pages, self._stored))
                self._table.settle()
                self._stored += len(part)
        except BaseException:
            self._cut(begin)
            raise
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def append(self, ids) -> None:
        """Add tokens without running them; `extend` does that with its own. Raises InputError as `extend` does."""
        if len(ids):
            self.ids.extend(self._fitting(ids).tolist())

    def fork(self, at: int | None = None) -> "Session":
        """A branch with the first `at` tokens, which shares their pages; this session stays as it is.

        Nothing is copied before one of the two writes to the page of the cut. The tokens of an encoded page before a
        cut inside it are computed again with the next `extend`: see `stored`.

        Parameters
        ----------
        at : tokens of the branch, from 0 to `position`; None takes all.

        Raises
        ------
        InputError : `at` out of range, or a scheme whose logits depend on how tokens were cut.
        """
        at = self._place(at, "fork")
        branch = Session(self._decoder, self._pool, self.model)
        kept = self._kept(at)
        branch.share(self.ids[:at], self._table.pages[: -(-kept // PAGE)], kept)
        return branch

    def rewind(self, to: int) -> None:
        """Forget all tokens from absolute position `to` on, and give back the pages that only they needed.

        Raises
        ------
        InputError : `to` is not between 0 and `position`, or a scheme whose logits depend on how tokens were cut.
        """
        to = self._place(to, "rewind")
        del self.ids[to:]
        self._cut(to)

    def generate(
        self, prompt: str | Sequence[int] | None = None, max_new_tokens: int | None = None, **sampling
    ) -> Generation:
        """Append a prompt and generate; afterwards the session holds the prompt and the new ids.

        Parameters
        ----------
        prompt : text, or token ids (at least one); None continues after the tokens that are there.
        max_new_tokens, **sampling : as for `Model.generate`.

        Raises
        ------
        InputError : bad arguments, before any compute; no tokens to continue after.
        NumericsError : non-finite logits.
        """
        made, drawn = self.start(prompt, max_new_tokens, **sampling)
        for _ in drawn:
            pass
        return made

    def start(
        self, prompt: str | Sequence[int] | None = None, max_new_tokens: int | None = None, **sampling
    ) -> tuple[Generation, Iterator[int]]:
        """Like `generate`, but returns a generation to be filled, and the ids that fill it as they are drawn."""
        if self.model is None:
            raise InputError("this session was made without a model and cannot generate: use Model.session()")
        again = prompt is None  # the last token's logits are needed: it is run again
        if again:
            if not self.ids:
                raise InputError("the session has no tokens to continue after: give a prompt")
            require_stable(self._decoder.scheme, "a second run of the last token")
            prompt = self.ids[-1:]
        ids = self.model.encode(prompt)
        stored = self.position - again
        sampler = generation.check(len(ids), max_new_tokens, self._decoder.config.context, stored, **sampling)
        made = Generation(prompt_tokens=len(ids))
        return made, self._steps(made, ids, max_new_tokens, sampler, stored)

    def _steps(self, made: Generation, ids: list[int], limit: int | None, sampler, stored: int) -> Iterator[int]:
        if stored < self.position:
            self.rewind(stored)
        yield from generation.steps(self.model, self, made, ids, limit, sampler)

    def replay(self, from_token: int, **sampling) -> Replay:
        """Generate again from a position on, in a branch, and compare with this session's tokens.

        Parameters
        ----------
        from_token : from 1 to `position`; a draw repeats where its generation began.
        **sampling : as for `generate`.

        Raises
        ------
        InputError : `from_token` out of range, or bad sampling.
        """
        if from_token == 0:
            raise InputError(f"replay from token 0: allowed are whole numbers from 1 to {self.position}")
        with self.fork(from_token) as branch:
            expected = self.ids[from_token:]
            made = branch.generate(None, len(expected), **sampling).ids if expected else []
        same = [a == b for a, b in zip(made, expected, strict=False)]
        first = same.index(False) if False in same else len(made)
        return Replay(int(from_token), made, None if first == len(expected) else int(from_token) + first)

    def save(self, path: str | Path, key: bytes | None = None) -> None:
        """Write the session to a file that `Model.load_session` reads; an existing one is replaced at the end.

        Parameters
        ----------
        path : of the file.
        key : signs it, so that it is only read with the same key.

        Raises
        ------
        InputError : an empty key, or a scheme whose logits depend on how tokens were cut.
        OSError : the file cannot be written.
        """
        from cachequant.kv import snapshot

        snapshot.save(self, path, key)

    def share(self, ids: Sequence[int], pages: Sequence[int], stored: int) -> None:
        """Make an empty session one of these tokens, of which the pages of others hold the first `stored`."""
        self.adopt(pages)
        self.ids, self._stored = list(ids), stored

    def adopt(self, pages: Sequence[int]) -> None:
        """Hold the given pages instead of this session's first ones, which hold the same keys and values."""
        self._table.adopt(pages)

    def _place(self, at: int | None, what: str) -> int:
        require_stable(self._decoder.scheme, what)
        at = self.position if at is None else at
        if isinstance(at, bool) or not isinstance(at, int | np.integer) or not 0 <= at <= self.position:
            raise InputError(f"{what} at token {at!r}: allowed are whole numbers from 0 to {self.position}")
        return int(at)

    def _kept(self, at: int) -> int:
        """How many of the first `at` tokens keep their keys and values: a part of an encoded page does not."""
        kept = min(at, self._stored)
        page, rows = divmod(kept, PAGE)
        encoded = self._stored >= (page + 1) * PAGE and not self._pool.divisible(page)
        return kept - rows if encoded else kept

    def _fitting(self, ids) -> np.ndarray:
        ids, context = check_ids(ids, self._decoder.config.vocab), self._decoder.config.context
        if self.position + len(ids) > context:
            raise InputError(f"{self.position} + {len(ids)} tokens do not fit a context of {context}")
        return ids

    def _cut(self, to: int) -> None:
        """Keep the keys and values of the first `to` tokens, as far as they can be kept."""
        self._stored = self._kept(to)
        self._table.trim(-(-self._stored // PAGE))

    def close(self) -> None:
        """Give the pages back; the session is empty afterwards."""
        self.ids, self._stored = [], 0
        self._table.trim(0)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __del__(self):
        self._table.drop()
