"""Text to token ids and back, over the `tokenizers` library (no transformers)."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import tokenizers

from cachequant.assets.hashing import sha256_bytes
from cachequant.errors import AssetError, InputError

_REPLACEMENT = "\ufffd"


class Tokenizer:
    """A tokenizer with the ids that end a text.

    Parameters
    ----------
    json_text : str
        A `tokenizer.json` of the `tokenizers` library.
    eos_ids : iterable of int
    bos_id : int or None
        Known, never added by `encode`.

    Raises
    ------
    AssetError
        `json_text` is not a tokenizer.
    """

    def __init__(self, json_text: str, eos_ids: Iterable[int] = (), bos_id: int | None = None):
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(json_text)
        except Exception as error:  # the library raises plain Exception
            raise AssetError(f"not a tokenizer.json that the tokenizers library reads: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.json_text = json_text
        self.eos_ids, self.bos_id = tuple(eos_ids), bos_id
        self.sha256 = sha256_bytes(json_text.encode("utf-8"))

    @classmethod
    def from_file(cls, path: Path, eos_ids: Iterable[int] = (), bos_id: int | None = None) -> "Tokenizer":
        """Read a `tokenizer.json`."""
        return cls(Path(path).read_text(encoding="utf-8"), eos_ids, bos_id)

    @property
    def vocab(self) -> int:
        """Number of ids, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without a beginning-of-text token; special tokens written in it are recognized."""
        if not isinstance(text, str):
            raise InputError(f"the text to encode is of type {type(text).__name__}; allowed: str")
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`; bytes that form no character become U+FFFD."""
        return self._tokenizer.decode(list(map(int, ids)), skip_special_tokens=skip_special)

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of one id, None if there is none."""
        return self._tokenizer.id_to_token(token_id)

    def stream(self, skip_special: bool = True) -> "StreamDecoder":
        """A decoder that is fed one id at a time."""
        return StreamDecoder(self, skip_special)

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """Pieces of the text of `ids` as they come, none empty and none with a part of a character."""
        stream = self.stream()
        for token in ids:
            if piece := stream.feed(token):
                yield piece
        if piece := stream.finish():
            yield piece


class StreamDecoder:
    """Decode ids as they come; the pieces, joined, are the text of all ids, and no piece ends inside a character.

    What could still change with the next id (a trailing U+FFFD may be the first bytes of a character) is held back
    until it is settled or `finish` is called. Only the ids since about the last settled point are decoded again.
    """

    _CONTEXT = 4  # settled ids decoded again, for tokenizers that treat the first token of a text differently

    def __init__(self, tokenizer: Tokenizer, skip_special: bool):
        self._tokenizer, self._skip = tokenizer, skip_special
        self._ids: list[int] = []
        self._sent = 0  # characters of the text of `_ids` that were given out

    def feed(self, token_id: int) -> str:
        """The text that `token_id` settles, possibly empty."""
        self._ids.append(int(token_id))
        text = self._tokenizer.decode(self._ids, self._skip)
        settled = len(text.rstrip(_REPLACEMENT))
        piece, self._sent = text[self._sent : settled], max(settled, self._sent)
        if settled == len(text) and len(self._ids) > 2 * self._CONTEXT:
            self._forget()
        return piece

    def finish(self) -> str:
        """What was held back."""
        text = self._tokenizer.decode(self._ids, self._skip)
        piece, self._sent = text[self._sent :], len(text)
        return piece

    def _forget(self) -> None:
        """Drop old ids where the rest decodes to the end of the same text."""
        kept = self._ids[-self._CONTEXT :]
        whole, text = self._tokenizer.decode(self._ids, self._skip), self._tokenizer.decode(kept, self._skip)
        if text and not text.startswith(_REPLACEMENT) and whole.endswith(text):
            self._ids, self._sent = kept, len(text)
