"""Rows of the chapter on checkpoints, from what `footprint.measure` found for each model."""

from cachequant.study.footprint import BASELINE

SPEEDS = ("decode_tok_s", "uncached_tok_s")


def of(models: dict[str, dict]) -> list[dict]:
    """One row a model and scheme, sizes in MB and as shares of float32's in %.

    Parameters
    ----------
    models : {title of a model: object of `footprint.measure`}.

    Returns
    -------
    [{model, scheme, file, file_share, above, above_share, resident, excess, decode, uncached, decode_times,
    uncached_times}]: `above` is the peak over the base, `resident` the whole process at its peak, `excess` what is
    above the base over the bytes of the weights; speeds with their intervals, and as ratios to float32.
    """
    return [
        {"model": title, "scheme": name, **_row(found, name)}
        for title, found in models.items()
        for name in found["arms"]
    ]


def _row(found: dict, name: str) -> dict:
    facts, base, arm = found["facts"][name], found["facts"].get(BASELINE), found["arms"][name]
    ratios = found["ratios"].get(f"{name}/{BASELINE}", {})
    speeds = {}
    for metric in SPEEDS:
        key = metric.removesuffix("_tok_s")
        speeds |= {key: arm.get(metric), f"{key}_times": ratios.get(metric)}
    shares = {
        f"{key}_share": 100 * facts[f"{key}_bytes"] / base[f"{key}_bytes"] if base else None
        for key in ("file", "above")
    }
    return {
        "file": facts["file_bytes"] / 1e6,
        "above": facts["above_bytes"] / 1e6,
        "resident": facts["peak_rss_bytes"] / 1e6,
        "excess": facts["above_bytes"] / facts["file_bytes"],
        **shares,
        **speeds,
    }
