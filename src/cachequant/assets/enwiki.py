"""Plain prose out of a MediaWiki export: the extract of English Wikipedia (2016) that serves as a text without a hub.

Written for articles, not for every construct of the markup: references, tables, files and most templates go, links
keep their words, a few templates that stand inside sentences are spelled out, closing sections (references, see also)
are dropped.
"""

import bz2
import html
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from cachequant.errors import AssetError

_WITHOUT_PROSE = "ref|gallery|timeline|source|syntaxhighlight|imagemap|score|hiero|pre|code|chem|references|noinclude"
_REMOVED = re.compile(rf"<!--.*?-->|<({_WITHOUT_PROSE})\b[^<>]*?(/>|>.*?</\1\s*>)", re.S | re.I)
_MATH = re.compile(r"<math\b[^<>]*>(.*?)</math\s*>", re.S | re.I)
_TABLE = re.compile(r"\{\|(?:(?!\{\|).)*?\|\}", re.S)
_TEMPLATE = re.compile(r"\{\{([^{}]*)\}\}")
_LINK = re.compile(r"\[\[((?:[^\[\]]|\[(?!\[)|\](?!\]))*)\]\]")
_WEB_LINK = re.compile(r"\[(?:https?:|ftp:|mailto:)?//[^\s\[\]]*\s*([^\[\]]*)\]")
_HEADING = re.compile(r"^(={2,6})\s*(.*?)\s*\1\s*$")
_NAMESPACE = re.compile(r":?\s*(file|image|category|media|wikt|wiktionary|wikipedia|s|commons|[a-z]{2,3})\s*:", re.I)
_CLOSING = frozenset(
    {"see also", "references", "external links", "further reading", "notes", "footnotes", "bibliography", "sources"}
    | {"citations", "gallery", "notes and references", "references and notes", "works cited", "literature", "works"}
    | {"filmography", "discography", "publications", "general references", "cited sources", "reading list", "editions"}
    | {"image gallery", "selected bibliography", "list of works"}
)
_LEFTOVER = re.compile(r"\{\{|\}\}|\|thumb|\[\[(?:file|image):", re.I)
_SENTENCE = 60  # characters from which a list item counts as prose
_SPELLED = {
    "ndash": "–",
    "mdash": "—",
    "snd": " – ",
    "spaced ndash": " – ",
    "spnd": " – ",
    "nbsp": " ",
    "'": "'",
    "=": "=",
}
_LAST_WORD = (
    "lang",
    "nowrap",
    "transl",
    "smallcaps",
    "sic",
    "abbr",
    "small",
    "smaller",
    "big",
    "nobold",
    "noitalic",
    "sc",
)
_QUOTES = ("quote", "cquote", "blockquote", "quotation", "bquote")


def read_articles(path: Path) -> list[str]:
    """Prose of every article (main namespace, no redirect) of an export compressed with bzip2, in its order.

    Raises
    ------
    AssetError
        The file is not such an export.
    """
    try:
        return [f"{title}\n\n{strip(markup)}" for title, markup in _pages(path)]
    except (OSError, EOFError, ElementTree.ParseError) as error:
        raise AssetError(f"{path}: not a readable MediaWiki export ({error})") from error


def strip(markup: str) -> str:
    """Prose of one article: paragraphs and headings, separated by blank lines."""
    text = _REMOVED.sub("", markup)
    text = _MATH.sub(_formula, text)
    text = _repeat(_TEMPLATE, _template, text)
    text = _repeat(_TABLE, lambda match: "", text)
    text = _repeat(_LINK, _link, text)
    text = _WEB_LINK.sub(r"\1", text)
    text = re.sub(r"<br\s*/?>", " ", text, flags=re.I)
    text = re.sub(r"</?[a-zA-Z][^<>]*>", "", text)
    text = re.sub(r"'{2,}", "", text)
    text = re.sub(r"__[A-Z]+__", "", html.unescape(text))
    return "\n\n".join(_paragraphs(text))


def _pages(path: Path) -> Iterator[tuple[str, str]]:
    with bz2.open(path) as file:
        for _, page in ElementTree.iterparse(file):
            if page.tag.rsplit("}", 1)[-1] != "page":
                continue
            found = {child.tag.rsplit("}", 1)[-1]: child for child in page.iter()}
            if found["ns"].text == "0" and "redirect" not in found:
                yield found["title"].text, found["text"].text or ""
            page.clear()


def _repeat(pattern: re.Pattern, replace, text: str) -> str:
    """Replace innermost matches until none is left: nested markup from the inside out."""
    while True:
        text, count = pattern.subn(replace, text)
        if not count:
            return text


def _template(match: re.Match) -> str:
    name, *values = (part.strip() for part in match[1].split("|"))
    name = name.lower()
    if name in _SPELLED:
        return _SPELLED[name]
    plain = [value for value in values if not re.match(r"[\w\s-]+=", value)]
    if name in ("convert", "cvt") and len(plain) >= 2:
        return f"{plain[0]} {plain[1]}"
    if name in _QUOTES:
        named = [value.split("=", 1)[1].strip() for value in values if re.match(r"(text|quote|1)\s*=", value)]
        return (named or plain or [""])[0]
    if name in _LAST_WORD or name.startswith("lang-"):
        return plain[-1] if plain else ""
    return ""


def _formula(match: re.Match) -> str:
    """A formula of plain letters and signs, else nothing."""
    formula = match[1].strip()
    return formula if re.fullmatch(r"[\w\s=+*/().,-]{1,40}", formula) else ""


def _link(match: re.Match) -> str:
    target, *words = match[1].split("|")
    if _NAMESPACE.match(target):
        return "" if not target.startswith(":") or not words else words[-1]
    return words[-1] if words and words[-1].strip() else target


def _paragraphs(text: str) -> Iterator[str]:
    dropped = 0  # level of the closing section that is being skipped, 0 for none
    pending: list[str] = []  # headings that have had no text under them yet
    for line in text.split("\n"):
        heading = _HEADING.match(line.strip())
        if heading:
            level, title = len(heading[1]), heading[2].strip()
            if dropped and level > dropped:
                continue
            dropped = level if title.lower() in _CLOSING else 0
            pending = [] if dropped else [title]
            continue
        line = _tidy(line)
        if dropped or not line:
            continue
        yield from pending
        pending = []
        yield line


def _tidy(line: str) -> str:
    """One paragraph without the holes that removed markup leaves; "" for short list items and leftovers of markup."""
    if line.startswith(("|", "!", "{", "}")) or _LEFTOVER.search(line):
        return ""
    item = line.startswith(("*", "#", ":", ";"))
    line = re.sub(r"^[*#:;\s]+", "", line)
    line = re.sub(r"\[\[|\]\]", "", line)
    line = re.sub(r"\s+", " ", line)
    line = re.sub(r"\(\s*[,;:]*\s*", "(", line)
    line = re.sub(r"\s*[,;:]*\s*\)", ")", line)
    line = re.sub(r"\s*\(\)", "", line)
    line = re.sub(r"\s+([,.;:!?])(?=\s|$)", r"\1", line)
    line = re.sub(r"([,;:])(?:\s*\1)+", r"\1", line).strip()
    if item and (len(line) < _SENTENCE or not line.endswith((".", "!", "?", '"', ")"))):
        return ""
    return line if sum(letter.isalpha() for letter in line) >= 3 else ""
