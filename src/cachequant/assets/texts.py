"""Text names to texts: WikiText-2, the embedded Wikipedia extract, or a file."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cachequant.assets import cachedir, enwiki, pins, wheels, wikitext
from cachequant.assets.hashing import require_sha256, sha256_bytes
from cachequant.errors import AssetError, InputError

WIKITEXT_NAMES = ("wikitext-2-test", "wikitext-2-test-raw", "wikitext-2-valid", "wikitext-2-valid-raw")
ENWIKI_NAMES = ("enwiki", "enwiki-calibration")
CHOICES = ", ".join((*WIKITEXT_NAMES, *ENWIKI_NAMES)) + ", or the path of a UTF-8 text file"
_Say = Callable[[str], None]


@dataclass(frozen=True)
class Text:
    """A text with its identity.

    Parameters
    ----------
    name : str
        Part of every result that is measured on it.
    text : str
    sha256 : str
        Of the text in UTF-8.
    licence, source : str
        Empty for a user's own file.
    """

    name: str
    text: str
    sha256: str
    licence: str = ""
    source: str = ""


def resolve(name: str | Path, say: _Say = lambda line: None) -> Text:
    """Find a text.

    Parameters
    ----------
    name : str or Path
        `wikitext-2-test` or `wikitext-2-valid`: the rows joined with blank lines, as in most papers; with `-raw`: the
        file as it is, as in llama.cpp. `enwiki`: the first nine tenths of the embedded extract's articles;
        `enwiki-calibration`: the rest, never scored. Anything else is the path of a file.
    say : callable
        Told what takes time, a line at a time.

    Raises
    ------
    InputError
        No such name or file.
    AssetError
        The text cannot be had (the message names the choices), is damaged or empty.
    """
    text = str(name)
    if text in WIKITEXT_NAMES:
        return _wikitext(text)
    if text in ENWIKI_NAMES:
        return _enwiki(text, say)
    path = Path(text).expanduser()
    if not path.is_file():
        raise InputError(f"no text {text!r}; allowed: {CHOICES}")
    return _file(path)


def default(say: _Say = lambda line: None) -> Text:
    """The text to score: WikiText-2 test where it can be had, else the embedded extract.

    Raises
    ------
    AssetError
        CACHEQUANT_WIKITEXT is set but wrong, or neither text can be had.
    """
    return resolve(_default_names(*_place())[0], say)


def calibration(say: _Say = lambda line: None) -> Text:
    """The text that statistics may be fitted on, which `default` never scores."""
    return resolve(_default_names(*_place())[1], say)


def _place() -> tuple[str | None, str]:
    return os.environ.get("CACHEQUANT_WIKITEXT"), str(cachedir.root())


@functools.cache  # one attempt to reach the hub a process
def _default_names(chosen: str | None, cache: str) -> tuple[str, str]:
    try:
        wikitext.read_split("test")
        wikitext.read_split("valid")
        return "wikitext-2-test", "wikitext-2-valid"
    except AssetError:
        if chosen:
            raise  # the user named a folder: do not take another text silently
        return ENWIKI_NAMES


def _wikitext(name: str) -> Text:
    split = name.split("-")[2]
    raw = wikitext.read_split(split)
    text = raw if name.endswith("-raw") else "\n\n".join(wikitext.rows(raw))
    source = f"{pins.WIKITEXT_REPOSITORY}, {pins.WIKITEXT_SUBSET}"
    return Text(name, text, sha256_bytes(text.encode("utf-8")), pins.WIKITEXT_LICENCE, source)


def _enwiki(name: str, say: _Say) -> Text:
    expected = pins.ENWIKI_TEXTS[name]
    path = cachedir.root() / "texts" / f"{name}-{expected[:16]}.txt"
    if not path.is_file():
        archive = wheels.fetch(pins.ENWIKI, say)
        say("extracting the prose of enwiki")
        for part, text in split_articles(enwiki.read_articles(archive)).items():
            digest = pins.ENWIKI_TEXTS[part]
            require_sha256(sha256_bytes(text.encode("utf-8")), digest, f"the text {part} as extracted here")
            with cachedir.atomic_file(path.with_name(f"{part}-{digest[:16]}.txt")) as partial:
                partial.write_bytes(text.encode("utf-8"))
    data = path.read_bytes()
    require_sha256(sha256_bytes(data), expected, str(path))
    source = f"Wikipedia dump of 2016, in {pins.ENWIKI.package} {pins.ENWIKI.version}"
    return Text(name, data.decode("utf-8"), expected, pins.ENWIKI.licence, source)


def split_articles(articles: list[str]) -> dict[str, str]:
    """The articles as two texts: the last tenth is for calibration."""
    scored = len(articles) - len(articles) // 10
    parts = (articles[:scored], articles[scored:])
    return {name: "\n\n".join(part) + "\n" for name, part in zip(ENWIKI_NAMES, parts, strict=True)}


def _file(path: Path) -> Text:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AssetError(f"{path}: not UTF-8 (byte {error.start})") from error
    if not text.strip():
        raise AssetError(f"{path}: the text is empty")
    return Text(path.name, text, sha256_bytes(data))
