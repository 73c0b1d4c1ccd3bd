"""Rows of the quality chapter: figures of an evaluation beside what each scheme is and its bits a weight."""

from collections.abc import Sequence

from cachequant import schemes
from cachequant.decoder.config import DecoderConfig
from cachequant.errors import InputError
from cachequant.study import quality, traffic
from cachequant.study.formats import rule_name

TWO_BY_TWO = ("int8", "bfp8-row", "int8-block32", "bfp8")  # rows or blocks of 32, exact scales or powers of two


def of(evaluation: dict, config: DecoderConfig) -> dict[str, dict]:
    """{scheme: figures of `quality.summarize` with "scheme", "bits" and, where there is one, "granularity" and "rule"}.

    `bits` is the mean over the quantized matrices of the blocks, scales counted as stored; granularity and rule are
    those of the weights.
    """
    return {name: {**_describe(name, config), **row} for name, row in quality.summarize(evaluation).items()}


def _describe(name: str, config: DecoderConfig) -> dict:
    scheme = schemes.get(name)
    row = {"scheme": name, "bits": bits(name, config), "weights_only": scheme.activation is None}
    if scheme.weight:
        row |= {"granularity": scheme.weight.granularity.name, "rule": rule_name(scheme.weight)}
    return row


def bits(name: str, config: DecoderConfig) -> float:
    """Bits a weight of the decoder blocks."""
    return traffic.bits(traffic.shape(config), traffic.weight_bytes(config, name))["blocks"]


def grid_names(granularities: Sequence[str]) -> dict[str, str]:
    """{cell of the grid: name under which it is scored}: a cell that is also a preset goes by the preset's name.

    Rows and blocks of 32 are always there.

    Raises
    ------
    InputError : an unknown granularity.
    """
    cells = schemes.grid()
    known = list(dict.fromkeys(s.weight.granularity.name for s in cells.values()))
    if odd := set(granularities) - set(known):
        raise InputError(f"unknown granularity {sorted(odd)[0]!r}; allowed: {', '.join(known)}")
    wanted = {"row", "block32", *granularities}
    presets = {(s.weight, s.activation): name for name, s in schemes.PRESETS.items() if s.transform is None}
    return {
        cell: presets.get((s.weight, s.activation), cell)
        for cell, s in cells.items()
        if s.weight.granularity.name in wanted
    }


def agreed(tokens: list[int], expected: list[int]) -> int:
    """How many tokens are the same before the first that differs."""
    return next((i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b), len(expected))
