"""A `tokenizer.json` from the metadata of a GGUF file, and the metadata of a file from a byte-level tokenizer.

For byte-level BPE the file keeps the vocabulary, the merges and a name (`pre`) for the rule that splits text into words
before merging; the rules behind the names are those of the models' own tokenizers.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from cachequant.assets import gguf_sentencepiece
from cachequant.assets.store import ModelAsset
from cachequant.errors import ConfigError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|{digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # token types of the file
NONE = "none"  # tokenizer model of a file without a vocabulary


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


def build_tokenizer(fields: Mapping[str, Any]) -> str | None:
    """The text of a `tokenizer.json`; None for a file without a vocabulary, whose model is called "none".

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
    if model == NONE:
        return None
    if not isinstance(model, str) or model not in builders:
        raise ConfigError(f"tokenizer.ggml.model is {str(model)[:80]!r}; allowed: {', '.join(builders)}, {NONE}")
    tokens = _list(fields, "tokens", str)
    if len(set(tokens)) != len(tokens):
        raise ConfigError(f"{len(tokens) - len(set(tokens))} entries of tokenizer.ggml.tokens occur twice")
    kinds = _list(fields, "token_type", int, [])
    try:
        tokenizer = builders[model](fields, tokens)
    except ConfigError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"the vocabulary in tokenizer.ggml is not consistent: {error}") from error
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        found = [
            AddedToken(token, special=special, normalized=False)
            for token, found_kind in zip(tokens, kinds, strict=False)
            if found_kind == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(found)
    return tokenizer.to_str()


def describe(asset: ModelAsset) -> dict[str, Any]:
    """Metadata from which `build_tokenizer` makes the tokenizer of a model again.

    Only byte-level BPE whose splitting rule has a name among those read here is written; for all others, and for a
    model without a tokenizer, the result says that there is no vocabulary.
    """
    found = None if asset.tokenizer is None else _describe(json.loads(asset.tokenizer.json_text), asset.config.vocab)
    if found is None:
        return {"tokenizer.ggml.model": NONE}
    ends = zip(("eos", "eot"), asset.config.eos_ids, strict=False)
    ids = {"bos": asset.config.bos_id, **dict(ends)}
    found |= {f"tokenizer.ggml.{kind}_token_id": token for kind, token in ids.items() if token is not None}
    found["tokenizer.ggml.add_bos_token"] = False
    if asset.chat_template is not None:
        found["tokenizer.chat_template"] = asset.chat_template
    return found


def _describe(tokenizer: Mapping[str, Any], vocab: int) -> dict[str, Any] | None:
    model, added = tokenizer["model"], tokenizer.get("added_tokens", [])
    rule = _rule_of(tokenizer)
    if model.get("type") != "BPE" or rule is None or not model["merges"]:
        return None
    names = {index: token for token, index in model["vocab"].items()} | {t["id"]: t["content"] for t in added}
    if set(names) - set(range(vocab)):
        return None
    kinds = {t["id"]: _CONTROL if t["special"] else _USER_DEFINED for t in added}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": [names.get(i, f"[PAD{i}]") for i in range(vocab)],
        "tokenizer.ggml.token_type": [kinds.get(i, _NORMAL if i in names else _UNUSED) for i in range(vocab)],
        "tokenizer.ggml.merges": merges,
    }


def _rule_of(tokenizer: Mapping[str, Any]) -> str | None:
    """The name under which this splitting, skipping of merges and normalization is known."""
    for name, (split, whole_words, normalizer) in _RULES.items():
        plain = Tokenizer(models.BPE(ignore_merges=whole_words))
        plain.pre_tokenizer = split()
        if normalizer:
            plain.normalizer = normalizer()
        known = json.loads(plain.to_str())
        same = all(_plain(tokenizer.get(part)) == _plain(known.get(part)) for part in ("pre_tokenizer", "normalizer"))
        if same and bool(tokenizer["model"].get("ignore_merges")) == whole_words:
            return name
    return None


def _plain(step: Any) -> Any:
    """A step of a `tokenizer.json` without what does not change how text is split, defaults filled in."""
    if isinstance(step, dict):
        kept = {key: _plain(value) for key, value in step.items() if key != "trim_offsets"}
        return {"use_regex": True, **kept} if step.get("type") == "ByteLevel" else kept
    return [_plain(entry) for entry in step] if isinstance(step, list) else step


def _byte_level(fields: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    rule = fields.get("tokenizer.ggml.pre", "gpt-2")
    if not isinstance(rule, str) or rule not in _RULES:
        raise ConfigError(f"tokenizer.ggml.pre is {str(rule)[:80]!r}; allowed: {', '.join(_RULES)}")
    split, whole_words, normalizer = _RULES[rule]
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in _list(fields, "merges", str)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=whole_words))
    tokenizer.pre_tokenizer, tokenizer.decoder = split(), decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer()
    return tokenizer


def _sentencepiece(fields: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    scores, kinds = _list(fields, "scores", float), _list(fields, "token_type", int)
    leading_space = fields.get("tokenizer.ggml.add_space_prefix", True)
    return gguf_sentencepiece.build(tokens, scores, kinds, bool(leading_space))


def _list(fields: Mapping[str, Any], name: str, kind: type, default: list | None = None) -> list:
    value = fields.get(f"tokenizer.ggml.{name}", default)
    if value is None:
        raise ConfigError(f"the file lacks tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
        raise ConfigError(f"tokenizer.ggml.{name} is {str(value)[:80]}; allowed: a list of {kind.__name__}")
    return value
