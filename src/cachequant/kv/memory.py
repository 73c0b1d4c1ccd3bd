"""What a cache of keys and values takes, part by part, without making one."""

from dataclasses import asdict, dataclass

from cachequant.decoder.config import DecoderConfig
from cachequant.errors import InputError
from cachequant.kv import formats
from cachequant.kv.basis import PLAIN
from cachequant.kv.formats import PAGE, PageFormat

SCALE_BYTES, FLOAT = 2, 4


@dataclass(frozen=True)
class Memory:
    """Bytes of one sequence.

    codes, scales : of the pages that are coded.
    exact : rows of the pages that are not.
    slack : of exact pages: room that no token uses yet.
    basis : means, matrices and feedback, once a model.
    """

    codes: int
    scales: int
    exact: int
    slack: int
    basis: int

    @property
    def pages(self) -> int:
        """All pages, slack counted, without the basis."""
        return self.codes + self.scales + self.exact + self.slack


def memory(config: DecoderConfig, kv: str | PageFormat, tokens: int, calibration: str = "auto") -> Memory:
    """Memory of `tokens` cached tokens.

    Raises
    ------
    InputError : an unknown format, or one that does not fit the model; fewer than one token, or more than its context.
    """
    format, c = formats.get(kv), config
    if not 1 <= tokens <= c.context:
        raise InputError(f"{tokens} tokens: give 1 to {c.context}, the context of the model")
    format.check(c.layers, c.head_dim)
    row = 2 * c.layers * c.kv_heads * c.head_dim * FLOAT
    full, rest = divmod(tokens, PAGE)
    coded = max(full - format.exact_pages, 0) if format.paged else 0
    page = sum(format.side_sizes(c.layers, c.kv_heads, c.head_dim))
    sides = [bits for pair in format.layers(c.layers) for bits in pair]
    scales = coded * sum(bits <= 8 for bits in sides) * c.kv_heads * PAGE * SCALE_BYTES
    exact = tokens - coded * PAGE
    basis = 0
    if format.compressed:
        plain, triangle = 2 * (1 + 2 * c.head_dim) * c.head_dim * FLOAT, c.head_dim * (c.head_dim - 1) * FLOAT
        basis = plain if calibration == "none" else (plain + triangle) * c.layers * c.kv_heads
    return Memory(
        codes=coded * page - scales,
        scales=scales,
        exact=exact * row,
        slack=(PAGE - rest) % PAGE * row,
        basis=basis,
    )


def report(name: str, config: DecoderConfig, kv: str | PageFormat, tokens: int, calibration: str = "auto") -> dict:
    """What `cachequant memory` prints: the parts, bytes and bits a token, and how often float32 and float16 it fits."""
    format, found = formats.get(kv), memory(config, kv, tokens, calibration)
    fp32 = memory(config, "fp32", tokens).exact
    values = fp32 // FLOAT
    return {
        "model": name,
        "kv": format.name,
        "calibration": calibration if format.compressed else PLAIN if format.paged else "none",
        "context": tokens,
        "bytes": asdict(found) | {"pages": found.pages, "total": found.pages + found.basis},
        "bytes_per_token": found.pages / tokens,
        "bits_per_value": 8 * found.pages / values,
        "bits_per_value_limit": format.bits_per_value(config.layers, config.head_dim),
        "ratio_fp32": fp32 / found.pages,
        "ratio_fp16": fp32 / 2 / found.pages,
    }
