import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachequant.assets import gguf_sentencepiece
from cachequant.assets.gguf_tokenizer import build_tokenizer
from cachequant.decoder.tokenizer import Tokenizer
from cachequant.errors import ConfigError

SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = ["▁", "a", "b", "c", "é"]
# scores as training gives them: the n-th join has score -n; single letters come last
JOINED = ["ab", "▁a", "bc", "▁ab", "abc", "aa", "▁abc", "bcab"]


def vocabulary(joined=tuple(JOINED)):
    tokens = [*SPECIAL, *BYTES, *joined, *LETTERS]
    scores = [0.0] * (len(SPECIAL) + 256) + [-float(n) for n in range(len(joined) + len(LETTERS))]
    kinds = [2, 3, 3, *(6 for _ in BYTES), *(1 for _ in (*joined, *LETTERS))]
    return tokens, scores, kinds


def naive(text, tokens, scores):
    """SentencePiece's own rule: join the neighbours whose union scores best, leftmost first, until there are none."""
    score = dict(zip(tokens, scores, strict=True))
    pieces = list(("▁" + text).replace(" ", "▁"))
    while True:
        joins = [(-score[a + b], i) for i, (a, b) in enumerate(zip(pieces, pieces[1:], strict=False)) if a + b in score]
        if not joins:
            return pieces
        _, i = min(joins)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@settings(max_examples=300, deadline=None)
@given(st.text("abc ", max_size=24), st.permutations(JOINED))
def test_joins_are_those_of_sentencepiece(text, joined):
    tokens, scores, kinds = vocabulary(joined)
    tokenizer = gguf_sentencepiece.build(tokens, scores, kinds, leading_space=True)
    assert tokenizer.encode(text).tokens == (naive(text, tokens, scores) if text else [])


def test_a_whole_tokenizer():
    tokens, scores, kinds = vocabulary()
    fields = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": kinds}
    tokenizer = Tokenizer(build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in fields.items()}), [2], 1)
    ids = tokenizer.encode("abc é日")
    assert [tokenizer.token(i) for i in ids] == ["▁abc", "▁", "é", "<0xE6>", "<0x97>", "<0xA5>"]
    assert tokenizer.decode(ids) == "abc é日"
    assert tokenizer.encode("</s>") == [2] and tokenizer.decode([2]) == ""


def test_without_a_leading_space():
    tokenizer = gguf_sentencepiece.build(*vocabulary(), leading_space=False)
    assert tokenizer.encode("abc").tokens == ["abc"]
    assert tokenizer.decode(tokenizer.encode(" abc").ids) == " abc"


def test_incomplete_vocabularies_are_refused():
    tokens, scores, kinds = vocabulary()
    with pytest.raises(ConfigError, match="the counts must agree"):
        gguf_sentencepiece.build(tokens, scores[1:], kinds, True)
    with pytest.raises(ConfigError, match="marks no unknown token"):
        gguf_sentencepiece.build(tokens, scores, [1] * len(tokens), True)
