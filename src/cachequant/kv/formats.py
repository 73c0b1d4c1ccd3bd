"""Page formats: how many bits the keys and the values of each layer get, and what that comes to.

`k4v3` codes keys in 4 bits and values in 3; 2 to 4 bits are Lloyd-Max codes of the rotated vector, 8 is the code of
`int8`, 16 and 32 are plain floats. `k4v4,0-1:k8v8` gives layers 0 and 1 other bits, `k4v4+exact2` keeps two leading
pages exact instead of one. `mixed` gives each side of each layer of a model 2 to 4 bits, 3 on average, by how
sensitive it is (`kv.sensitivity`).
"""

import re
from dataclasses import dataclass

from cachequant.errors import InputError
from cachequant.kernels.codebooks import BITS, CODED
from cachequant.kernels.coded import side_bytes
from cachequant.kernels.tiles import PAGE
from cachequant.kv.codec import check_head_dim

ALIASES = {"fp32": "k32v32", "fp16": "k16v16", "int8": "k8v8"}
MIXED = "mixed"  # until a model is known it counts as k3v3, which is its size
NAMES = ("fp32", "fp16", "int8", "k4v4", "k4v3", "k3v3", "k2v2")
_SIDES = re.compile(r"k(\d+)v(\d+)")
_OTHER = re.compile(r"(\d+)(?:-(\d+))?:(.+)")
_EXACT = re.compile(r"(.*)\+exact(\d+)")


@dataclass(frozen=True)
class PageFormat:
    """How pages of keys and values are stored.

    name : as it was asked for; two formats that store the same have the same name.
    sides : (bits of keys, bits of values) of layers that `others` does not name.
    others : ((first layer, last layer, (bits of keys, bits of values)), ...).
    exact_pages : leading pages that every query sees exactly (attention sinks: Xiao et al. 2024); none where nothing
        is coded.
    """

    name: str
    sides: tuple[int, int]
    others: tuple[tuple[int, int, tuple[int, int]], ...] = ()
    exact_pages: int = 1

    @property
    def compressed(self) -> bool:
        """Whether some side is coded: then a query sees exact rows in its own page only (and in leading ones)."""
        return any(bits <= CODED for sides in (self.sides, *(o[2] for o in self.others)) for bits in sides)

    @property
    def paged(self) -> bool:
        """Whether full pages are stored in another form than the rows of the page that is being filled."""
        return self.sides != (32, 32) or bool(self.others)

    def layers(self, count: int) -> list[tuple[int, int]]:
        """(bits of keys, bits of values) of each of `count` layers. Raises InputError for a layer that is not there."""
        out = [self.sides] * count
        for first, last, sides in self.others:
            if last >= count:
                raise InputError(f"page format {self.name!r} names layer {last}; the model has layers 0 to {count - 1}")
            out[first : last + 1] = [sides] * (last + 1 - first)
        return out

    def check(self, layers: int, head_dim: int) -> None:
        """Raise InputError where the format does not fit a model."""
        self.layers(layers)
        if self.paged:
            check_head_dim(head_dim)

    def side_sizes(self, layers: int, kv_heads: int, head_dim: int) -> list[int]:
        """Bytes of the sides of a page of codes, in order: keys and values of every head of every layer."""
        sides = [side_bytes.py_func(bits, head_dim) for pair in self.layers(layers) for bits in pair]
        return [size for i in range(0, 2 * layers, 2) for size in sides[i : i + 2] * kv_heads]

    def bits_per_value(self, layers: int, head_dim: int, tokens: int | None = None) -> float:
        """Bits of a stored value, scales counted: in the limit, or of `tokens` with their exact pages."""
        page = 8 * sum(self.side_sizes(layers, 1, head_dim)) / (2 * layers * head_dim * PAGE)
        if tokens is None or not self.paged:
            return page
        full = tokens // PAGE
        exact = (min(self.exact_pages, full) if self.compressed else 0) + (tokens % PAGE > 0)
        return (32 * exact + page * (-(-tokens // PAGE) - exact)) * PAGE / tokens


def exact_bytes(layers: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of a page of exact float32 rows, all layers."""
    return 2 * layers * kv_heads * head_dim * PAGE * 4


def get(name: "str | PageFormat") -> PageFormat:
    """The format of a name. Raises InputError naming what is allowed."""
    if isinstance(name, PageFormat):
        return name
    if name == MIXED:
        return PageFormat(MIXED, (3, 3))
    text, *others = str(name).split(",")
    found, exact = _EXACT.fullmatch(str(name)), 1
    if found:
        exact = int(found[2])
        text, *others = found[1].split(",")
    sides = _sides(text, name)
    more = tuple(_other(part, name) for part in others)
    plain = next((a for a, k in ALIASES.items() if k == text), text)
    label = ",".join([plain, *others])
    made = PageFormat(label, sides, more, exact)
    if not made.compressed:
        if found:
            raise InputError(f"page format {name!r} codes nothing, so it has no exact pages to count")
        return PageFormat(label, sides, more, 0)
    return made if exact == 1 else PageFormat(f"{label}+exact{exact}", sides, more, exact)


def _sides(text: str, name) -> tuple[int, int]:
    found = _SIDES.fullmatch(ALIASES.get(text, text))
    sides = tuple(int(b) for b in found.groups()) if found else ()
    if not sides or any(b not in BITS for b in sides):
        raise InputError(
            f"page format {name!r} is not one of {', '.join((*NAMES, MIXED))}, or kXvY with X and Y of "
            f"{', '.join(map(str, BITS))}, with other layers as in k4v4,0-1:k8v8 and exact pages as in k4v4+exact2"
        )
    return sides


def _other(part: str, name) -> tuple[int, int, tuple[int, int]]:
    found = _OTHER.fullmatch(part)
    if not found:
        raise InputError(f"{part!r} in page format {name!r} is not a layer or a range with its bits, such as 0-1:k8v8")
    first = int(found[1])
    last = int(found[2] or first)
    if last < first:
        raise InputError(f"layers {first}-{last} in page format {name!r} run backwards")
    return first, last, _sides(found[3], name)
