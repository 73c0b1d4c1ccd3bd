"""Rows of the chapter on compressed keys and values: page formats with their figures, their bits and their bytes."""

from collections.abc import Sequence

from cachequant.decoder.config import DecoderConfig
from cachequant.errors import InputError
from cachequant.kv.formats import MIXED, PAGE, PageFormat
from cachequant.kv.memory import report
from cachequant.study import quality, variants
from cachequant.study.paired import BASELINE

PREFIX = f"{BASELINE}/"


def names(pages: Sequence[str]) -> list[str]:
    """Names under which page formats such as ``k4v4`` and ``k4v4/none`` are scored with float32 weights.

    Raises
    ------
    InputError : an unknown format.
    """
    return [variants.get(f"{PREFIX}{name}").name for name in pages]


def model_of(model, pages: str):
    """A float32 model with the pages that a name such as ``k4v4/none`` says."""
    return variants.get(f"{PREFIX}{pages}").of(model)[0]


def of(evaluation: dict, config: DecoderConfig) -> dict[str, dict]:
    """{pages: figures of `quality.summarize` with what the format takes}, float32 among them.

    Returns
    -------
    Each row has "pages" (the name), "calibrated", "bits" a value in the limit and "bits_window" at the window's length,
    scales and exact pages counted.
    """
    rows = {}
    for name, figures in quality.summarize(evaluation).items():
        variant = variants.get(name)
        kv, pages = variant.kv, name.removeprefix(PREFIX)
        rows[pages] = {
            "pages": pages,
            "calibrated": kv.compressed and variant.calibration == "auto",
            "bits": kv.bits_per_value(config.layers, config.head_dim),
            "bits_window": kv.bits_per_value(config.layers, config.head_dim, evaluation["window"]),
            **figures,
        }
    return rows


def front(rows: Sequence[dict]) -> list[dict]:
    """Rows than which no other has both fewer bits and a smaller change of perplexity, by bits."""
    found = []
    for row in sorted(rows, key=lambda r: (r["bits"], r["delta_percent"]["value"])):
        if not found or row["delta_percent"]["value"] < found[-1]["delta_percent"]["value"]:
            found.append(row)
    return found


def memory(model: str, config: DecoderConfig, pages: Sequence[str], contexts: Sequence[int]) -> list[dict]:
    """What `cachequant memory` says of every format and context.

    Raises
    ------
    InputError : an unknown format, or a context that the model does not have.
    """
    return [report(model, config, kv, tokens) for kv in pages for tokens in contexts]


def hybrid(attention: dict[int, dict], step_seconds: float, coded: str = "kv-k4v4", exact: str = "kv-fp32") -> dict:
    """Whether it pays to read exact pages in short contexts and codes in long ones.

    Parameters
    ----------
    attention : {context: object of `attention_bench.attention`}.
    step_seconds : of a whole decoded token in a short context.
    coded, exact : arms to choose between.

    Returns
    -------
    {"crossover" (the smallest context from which on the codes are faster at every one measured, None if there is none),
    "saved" {context: part of a decoded token that the exact pages would save, 0 where they save nothing}, "most"}.
    """
    contexts = sorted(attention)
    if not contexts:
        raise InputError("no contexts: attention was measured at none")
    seconds = {n: {arm: 1 / attention[n]["arms"][arm]["speed"]["median"] for arm in (coded, exact)} for n in contexts}
    slower = [n for n in contexts if seconds[n][coded] > seconds[n][exact]]
    after = [n for n in contexts if not slower or n > slower[-1]]
    saved = {n: max(0.0, (seconds[n][coded] - seconds[n][exact]) / step_seconds) for n in contexts}
    return {
        "crossover": after[0] if after else None,
        "saved": {str(n): value for n, value in saved.items()},
        "most": max(saved.values()),
    }


def longest(config: DecoderConfig, contexts: Sequence[int]) -> list[int]:
    """The contexts that a model can hold, in whole pages."""
    return [n for n in contexts if n <= config.context // PAGE * PAGE]


def fixed(pages: Sequence[str]) -> list[str]:
    """The page formats of names such as ``k4v4/none``, each once, without what is only known of a loaded model."""
    return [kv for kv in dict.fromkeys(name.split("/")[0] for name in pages) if kv != MIXED]


def sides(kv: PageFormat, layers: int) -> str:
    """What a format gives its layers, for a table: ``k4v4: 0-3, 7; k3v3: 4-6``."""
    runs: dict[str, list[str]] = {}
    found = kv.layers(layers)
    start = 0
    for i in range(1, layers + 1):
        if i == layers or found[i] != found[start]:
            k, v = found[start]
            runs.setdefault(f"k{k}v{v}", []).append(f"{start}-{i - 1}" if i - 1 > start else str(start))
            start = i
    return "; ".join(f"{kind}: {', '.join(places)}" for kind, places in runs.items())
