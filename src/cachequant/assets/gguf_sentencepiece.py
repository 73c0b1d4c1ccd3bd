"""A `tokenizers` tokenizer from a SentencePiece BPE vocabulary in a GGUF file (Llama 2 and its relatives).

SentencePiece (Kudo and Richardson 2018, arXiv 1808.06226) stores a score for each piece instead of merges and always
joins the two neighbours whose union has the best score. The same joins come out of merges (Sennrich et al. 2016, arXiv
1508.07909) that are ranked by the score of their union.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers

from cachequant.errors import ConfigError

_SPACE = "▁"
_UNKNOWN = 2  # token type of the file


def build(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], leading_space: bool) -> Tokenizer:
    """The tokenizer, without its special tokens.

    Parameters
    ----------
    tokens, scores, kinds : sequences of one length
        Pieces, their scores, and their types in the file.
    leading_space : bool
        A space is put in front of every text and taken away again by decoding.

    Raises
    ------
    ConfigError
        The three do not have one length, or no piece stands for unknown text.
    """
    if not len(tokens) == len(scores) == len(kinds):
        raise ConfigError(f"{len(tokens)} tokens, {len(scores)} scores and {len(kinds)} types: the counts must agree")
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    if unknown is None:
        raise ConfigError("tokenizer.ggml.token_type marks no unknown token")
    vocab = {token: index for index, token in enumerate(tokens)}
    model = models.BPE(vocab=vocab, merges=merges(vocab, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if leading_space:
        spaces = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer, tokenizer.decoder = spaces, decoders.Sequence(steps)
    return tokenizer


def merges(vocab: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score of the union first."""
    found = []
    for piece, index in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                found.append((-scores[index], index, vocab[left], vocab[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]
