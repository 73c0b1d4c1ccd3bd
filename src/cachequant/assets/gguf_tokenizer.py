"""A `tokenizer.json` from the metadata of a GGUF file.

For byte-level BPE the file keeps the vocabulary, the merges and a name (`pre`) for the rule that splits text into words
before merging; the rules behind the names are those of the models' own tokenizers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from cachequant.assets import gguf_sentencepiece
from cachequant.errors import ConfigError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|{digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTROL, _USER_DEFINED = 3, 4  # token types of the file


def _gpt2():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(digits: str):
    pattern = Regex(_CONTRACTIONS + _WORDS.replace("{digits}", digits))
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), bytes_only])


# name in the file: (splitting rule, words that are whole tokens skip the merges, Unicode normalization)
_RULES = {
    "gpt-2": (_gpt2, False, None),
    "smollm": (_smollm, False, None),
    "llama-bpe": (lambda: _split(r"\p{N}{1,3}"), True, None),
    "qwen2": (lambda: _split(r"\p{N}"), False, normalizers.NFC),
}


def build_tokenizer(fields: Mapping[str, Any]) -> str:
    """The text of a `tokenizer.json`.

    Parameters
    ----------
    fields : mapping
        Metadata of the file (`tokenizer.ggml.*`).

    Raises
    ------
    ConfigError
        A tokenizer model or splitting rule that is not handled, or a vocabulary that is incomplete.
    """
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    model = fields.get("tokenizer.ggml.model")
    if model not in builders:
        raise ConfigError(f"tokenizer.ggml.model is {model!r}; allowed: {', '.join(builders)}")
    tokens = _require(fields, "tokens")
    if len(set(tokens)) != len(tokens):
        raise ConfigError(f"{len(tokens) - len(set(tokens))} entries of tokenizer.ggml.tokens occur twice")
    tokenizer = builders[model](fields, tokens)
    kinds = fields.get("tokenizer.ggml.token_type", [])
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        found = [
            AddedToken(token, special=special, normalized=False)
            for token, found_kind in zip(tokens, kinds, strict=False)
            if found_kind == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(found)
    return tokenizer.to_str()


def _byte_level(fields: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    rule = fields.get("tokenizer.ggml.pre", "gpt-2")
    if rule not in _RULES:
        raise ConfigError(f"tokenizer.ggml.pre is {rule!r}; allowed: {', '.join(_RULES)}")
    split, whole_words, normalizer = _RULES[rule]
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in _require(fields, "merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=whole_words))
    tokenizer.pre_tokenizer, tokenizer.decoder = split(), decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer()
    return tokenizer


def _sentencepiece(fields: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    scores, kinds = _require(fields, "scores"), _require(fields, "token_type")
    leading_space = fields.get("tokenizer.ggml.add_space_prefix", True)
    return gguf_sentencepiece.build(tokens, scores, kinds, bool(leading_space))


def _require(fields: Mapping[str, Any], name: str) -> Any:
    value = fields.get(f"tokenizer.ggml.{name}")
    if value is None:
        raise ConfigError(f"the file lacks tokenizer.ggml.{name}")
    return value
