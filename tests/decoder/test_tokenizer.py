import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from cachequant.assets.hashing import sha256_bytes
from cachequant.decoder.tokenizer import Tokenizer
from cachequant.errors import AssetError, InputError
from helpers import byte_level


def sentence_pieces() -> str:
    """A tokenizer in the style of Llama 2: word starts marked, the first space dropped, bytes as a fallback."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b", "é"]
    library = Library(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[("▁", "a"), ("▁", "b")],
                                 unk_token="<unk>", byte_fallback=True))  # fmt: skip
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return library.to_str()


BYTES = Tokenizer(byte_level(), eos_ids=[259], bos_id=260)
PIECES = Tokenizer(sentence_pieces())
TEXT = "the théâtre, 日本語 and 🙂🏽 in the end\n"


def streamed(tokenizer, ids, **options):
    stream = tokenizer.stream(**options)
    pieces = [stream.feed(token) for token in ids]
    return [*pieces, stream.finish()]


def test_a_text_survives_and_no_beginning_is_added():
    ids = BYTES.encode(TEXT)
    assert 260 not in ids and BYTES.decode(ids) == TEXT
    assert (BYTES.eos_ids, BYTES.bos_id, BYTES.vocab) == ((259,), 260, 261)
    assert BYTES.encode("") == [] and BYTES.decode([]) == ""


def test_special_tokens_are_recognized_and_skipped():
    ids = BYTES.encode("the<end>the")
    assert 259 in ids
    assert BYTES.decode(ids) == "thethe"
    assert BYTES.decode(ids, skip_special=False) == "the<end>the"


def test_the_hash_is_that_of_the_json():
    assert BYTES.sha256 == sha256_bytes(byte_level().encode())


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
def test_no_piece_ends_inside_a_character(tokenizer):
    text = TEXT if tokenizer is BYTES else " a 日é🙂 b"
    pieces = streamed(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == tokenizer.decode(tokenizer.encode(text))
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == "" and sum(map(bool, pieces)) > 4


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 260), max_size=60), st.booleans())
def test_pieces_of_any_ids_join_to_the_whole_text(ids, skip):
    assert "".join(streamed(BYTES, ids, skip_special=skip)) == BYTES.decode(ids, skip_special=skip)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.booleans())
def test_pieces_of_any_text_join_to_it(text, pieces):
    tokenizer = PIECES if pieces else BYTES
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


def test_streaming_looks_back_a_bounded_way():
    stream = BYTES.stream()
    for token in BYTES.encode("the end " * 200):
        stream.feed(token)
    assert len(stream._ids) < 20


def test_an_unfinished_character_comes_at_the_end():
    stream = BYTES.stream()
    ids = BYTES.encode("é")
    assert stream.feed(ids[0]) == ""
    assert stream.finish() == "\ufffd"


def test_what_is_not_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(AssetError, match="not a tokenizer.json"):
        Tokenizer('{"model": 1}')


def test_only_strings_are_encoded():
    with pytest.raises(InputError, match="type bytes; allowed: str"):
        BYTES.encode(b"text")
