"""A session: token ids, and the page table that holds their keys and values."""

import numpy as np

from cachequant.decoder.forward import Decoder
from cachequant.errors import InputError
from cachequant.kv.pages import PAGE, PagePool

LOGITS = ("last", "all", "hidden", "none")


class Session:
    """Tokens that a decoder has seen, as ids and as K/V in reference-counted pages of 32 tokens.

    Parameters
    ----------
    decoder : packed weights.
    pool : where pages come from; they go back on `close()` or when the session is collected.
    """

    def __init__(self, decoder: Decoder, pool: PagePool):
        self._decoder, self._pool = decoder, pool
        self.ids: list[int] = []
        self._pages: list[int] = []
        self._addresses = np.empty(0, np.int64)

    @property
    def position(self) -> int:
        """How many tokens are stored; the next one gets this absolute position."""
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages in use, slack of the last one included."""
        return len(self._pages) * self._pool.page_bytes

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
        ids = check_ids(ids, self._decoder.config.vocab)
        end, context = self.position + len(ids), self._decoder.config.context
        if end > context:
            raise InputError(f"{self.position} + {len(ids)} tokens do not fit a context of {context}")
        self._reserve(end)
        hidden = self._decoder.forward(ids, self._addresses, self.position)
        self.ids.extend(ids.tolist())
        if logits == "hidden":
            return hidden
        if logits == "none":
            return None
        return self._decoder.logits(hidden) if logits == "all" else self._decoder.logits(hidden[-1:])[0]

    def _reserve(self, tokens: int) -> None:
        needed = -(-tokens // PAGE) - len(self._pages)
        if needed > 0:
            self._pages.extend(self._pool.acquire() for _ in range(needed))
            self._addresses = np.array([self._pool.address(p) for p in self._pages], np.int64)

    def close(self) -> None:
        """Give the pages back; the session is empty afterwards."""
        while self._pages:
            self._pool.release(self._pages.pop())
        self.ids, self._addresses = [], np.empty(0, np.int64)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __del__(self):
        self.close()


def check_ids(ids, vocab: int) -> np.ndarray:
    """(T,) int64 ids, or InputError naming the first bad one."""
    array = np.asarray(ids)
    if array.ndim != 1 or not array.size:
        raise InputError(f"expected at least one token id, got an array of shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise InputError(f"token ids have to be integers, got {array.dtype}")
    bad = np.flatnonzero((array < 0) | (array >= vocab))
    if bad.size:
        raise InputError(f"token id {array[bad[0]]} at {bad[0]} is outside the vocabulary [0, {vocab})")
    return array.astype(np.int64)
