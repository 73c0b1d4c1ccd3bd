"""Our weights in the formats of other engines, made once in the cache folder and named by the model's sha256.

CTranslate2 reads what its own converter makes of a plain transformers folder, llama.cpp what `gguf_write` writes. Both
get token ids, so neither needs a vocabulary. `gguf-export` is the file of `cachequant export`, with the codes that this
library runs with.
"""

import tempfile
from pathlib import Path

from cachequant import schemes
from cachequant.assets import cachedir
from cachequant.assets.materialize import materialize
from cachequant.assets.store import ModelAsset
from cachequant.errors import ConfigError, InputError

# and their endings; CTranslate2 has a folder
FORMATS = {"gguf-f32": ".gguf", "gguf-q8_0": ".gguf", "gguf-export": ".gguf", "ctranslate2": ""}
EXPORTED = "q8_0+head"  # scheme of `gguf-export`
_LAYOUT = 1  # raise it when these files change for the same model


def path(asset: ModelAsset, form: str) -> Path:
    """Where a model lies in one of FORMATS; it need not exist.

    Raises
    ------
    InputError
        Another format.
    """
    if form not in FORMATS:
        raise InputError(f"unknown format {form!r} of another engine; allowed: {', '.join(FORMATS)}")
    return cachedir.root() / "peers" / f"{asset.sha256[:32]}-{form}-v{_LAYOUT}{FORMATS[form]}"


def make(asset: ModelAsset, form: str) -> Path:
    """The model in one of FORMATS, converted if it is not there; `ctranslate2` is float32 and rounded when loaded.

    Raises
    ------
    ConfigError
        The model has scaled RoPE, which CTranslate2 was found to compute otherwise.
    """
    target = path(asset, form)
    if form == "ctranslate2" and asset.config.rope_scaling is not None:
        raise ConfigError(f"rope_scaling is {asset.config.rope_scaling}; allowed for CTranslate2: none")
    if target.exists():
        return target
    from cachequant.assets import gguf_write

    if form == "ctranslate2":
        with tempfile.TemporaryDirectory(prefix="cachequant-") as parent, cachedir.atomic_folder(target) as partial:
            plain = materialize(asset, Path(parent) / "model")
            _convert(str(plain), str(partial), asset.config.vocab)
    elif form == "gguf-export":
        gguf_write.export_gguf(asset, target, schemes.get(EXPORTED))
    else:
        with cachedir.atomic_file(target) as partial:
            gguf_write.write_gguf(asset, partial, form.removeprefix("gguf-"))
    return target


def _convert(source: str, target: str, vocab: int) -> None:
    from ctranslate2.converters import TransformersConverter

    class ByNumber(TransformersConverter):
        """The converter as it is, but for the names of tokens."""

        def load_tokenizer(self, kind, folder, **options):
            return Numbers(vocab)

    ByNumber(source).convert(target, force=True)


class Numbers:
    """What the converter asks of a tokenizer: tokens are called by their ids, and none of them ends a text."""

    bos_token = eos_token = unk_token = "0"
    add_bos_token = False

    def __init__(self, vocab: int):
        self._vocab = vocab

    def get_vocab(self) -> dict[str, int]:
        """{name: id}."""
        return {str(token): token for token in range(self._vocab)}
