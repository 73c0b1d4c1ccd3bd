"""A session: token ids, and the page table that holds their keys and values."""

import numpy as np

from cachequant.decoder.forward import Decoder
from cachequant.errors import InputError
from cachequant.kv.pages import PAGE, PagePool
from cachequant.kv.table import Pages

LOGITS = ("last", "all", "hidden", "none")
CODED_CHUNK = 256  # tokens a pass over coded pages: bounds the exact pages that it needs


class Session:
    """Tokens that a decoder has seen, as ids and as K/V in reference-counted pages of 32 tokens.

    Parameters
    ----------
    decoder : packed weights.
    pool : where exact pages come from; they go back on `close()` or when the session is collected.
    codes : where pages of codes come from, for a format that has them. Full pages are kept as codes, but for the leading
        ones that stay exact.
    """

    def __init__(self, decoder: Decoder, pool: PagePool, codes: PagePool | None = None):
        self._decoder, self._pool, self._codes = decoder, pool, codes
        self.ids: list[int] = []
        self._exact: list[int | None] = []  # a page each; None where only codes are left
        self._coded: list[int | None] = []  # a page each; None where there are no codes

    @property
    def position(self) -> int:
        """How many tokens are stored; the next one gets this absolute position."""
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages in use, slack of the last one included."""
        coded = sum(p is not None for p in self._coded)
        exact = sum(p is not None for p in self._exact) * self._pool.page_bytes
        return exact + (coded * self._codes.page_bytes if coded else 0)

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
        hidden = self._run(ids)
        if logits == "hidden":
            return hidden
        if logits == "none":
            return None
        return self._decoder.logits(hidden) if logits == "all" else self._decoder.logits(hidden[-1:])[0]

    def _run(self, ids: np.ndarray) -> np.ndarray:
        """Final hidden states of new tokens; a pass keeps what the passes before it stored, if it fails."""
        chunk = CODED_CHUNK if self._codes and self._decoder.scheme.chunk_stable else len(ids)
        parts = []
        for i in range(0, len(ids), chunk):
            part = ids[i : i + chunk]
            parts.append(self._decoder.forward(part, self._reserve(len(part)), self.position))
            self.ids.extend(part.tolist())
            self._drop_exact()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _reserve(self, tokens: int) -> Pages:
        """Room for so many more tokens, and where it is."""
        end = self.position + tokens
        for index in range(len(self._exact), -(-end // PAGE)):
            self._exact.append(self._pool.acquire())
            self._coded.append(None)
        if self._codes is None:
            return Pages(_addresses(self._pool, self._exact))
        coding = self._codes.codes
        for index in range(max(self.position // PAGE, coding.format.exact_pages), end // PAGE):
            if self._coded[index] is None:
                self._coded[index] = self._codes.acquire()
        return Pages(_addresses(self._pool, self._exact), _addresses(self._codes, self._coded), coding.numbers)

    def _drop_exact(self) -> None:
        """Give back the exact rows of pages that are coded."""
        for index, page in enumerate(self._exact):
            if page is not None and self._coded[index] is not None:
                self._pool.release(page)
                self._exact[index] = None

    def close(self) -> None:
        """Give the pages back; the session is empty afterwards."""
        for pool, pages in ((self._pool, self._exact), (self._codes, self._coded)):
            while pages:
                if (page := pages.pop()) is not None:
                    pool.release(page)
        self.ids = []

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __del__(self):
        self.close()


def _addresses(pool: PagePool, pages: list[int | None]) -> np.ndarray:
    return np.array([0 if p is None else pool.address(p) for p in pages], np.int64)


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
