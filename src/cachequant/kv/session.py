"""A session: token ids, and the page table that holds their keys and values."""

import numpy as np

from cachequant.decoder.forward import Decoder
from cachequant.errors import InputError
from cachequant.kv.pages import PagePool
from cachequant.kv.table import PageTable

LOGITS = ("last", "all", "hidden", "none")
CODED_CHUNK = 256  # tokens a pass over coded pages: bounds the exact pages that it needs


class Session:
    """Tokens that a decoder has seen, as ids and as K/V in reference-counted pages of 32 tokens.

    Parameters
    ----------
    decoder : packed weights.
    pool : where exact pages come from; they go back on `close()` or when the session is collected.
    codes : where pages of codes come from, for a format that has them.
    """

    def __init__(self, decoder: Decoder, pool: PagePool, codes: PagePool | None = None):
        self._decoder, self._coded = decoder, codes is not None
        self.ids: list[int] = []
        self._table = PageTable(pool, codes)

    @property
    def position(self) -> int:
        """How many tokens are stored; the next one gets this absolute position."""
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the pages in use, slack of the last one included."""
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
        chunk = CODED_CHUNK if self._coded and self._decoder.scheme.chunk_stable else len(ids)
        parts = []
        for i in range(0, len(ids), chunk):
            part = ids[i : i + chunk]
            parts.append(self._decoder.forward(part, self._table.reserve(self.position, len(part)), self.position))
            self.ids.extend(part.tolist())
            self._table.drop_exact()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def close(self) -> None:
        """Give the pages back; the session is empty afterwards."""
        self._table.close()
        self.ids = []

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
