"""Which layers a page format costs most: attention's output against the exact one, and layers coded one at a time."""

import numpy as np

from cachequant.decoder.model import Model
from cachequant.kv import formats
from cachequant.kv.attention import Attention
from cachequant.kv.basis import Basis
from cachequant.kv.formats import PageFormat
from cachequant.study.kv_vectors import SKIPPED, Vectors


def output_cosine(model: Model, seen: dict[int, Vectors]) -> list[dict]:
    """How near the output of attention over codes is to the exact one, layer by layer, from the same keys and values.

    The kernels read the codes back; tokens go in page by page, as they would be decoded.

    Parameters
    ----------
    model : with the page format and its basis.
    seen : `kv_vectors.capture` of a text.

    Returns
    -------
    [{"layer", "mean", "low" (the worst hundredth): cosine of a head's output, "error": relative squared error}].
    """
    rows = []
    for layer, x in seen.items():
        exact, found = (_attended(kv, x, basis) for kv, basis in (("fp32", None), _layer(model, layer)))
        a, b = exact[SKIPPED:].astype(np.float64), found[SKIPPED:].astype(np.float64)
        cosine = (a * b).sum(-1) / np.maximum(np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1), 1e-30)
        error = ((a - b) ** 2).sum() / (a * a).sum()
        rows.append({
            "layer": layer, "mean": float(cosine.mean()), "low": float(np.quantile(cosine, 0.01)),
            "error": float(error),
        })  # fmt: skip
    return rows


def _layer(model: Model, layer: int) -> tuple[PageFormat, Basis | None]:
    """Format and basis of one layer of a model."""
    k, v = model.kv.layers(model.config.layers)[layer]
    made, basis = formats.get(f"k{k}v{v}"), model.pages.basis
    exact = model.kv.exact_pages
    if made.compressed and exact != 1:
        made = formats.get(f"k{k}v{v}+exact{exact}")
    if basis is None:
        return made, None
    fed = None if basis.feedback is None else basis.feedback[layer : layer + 1]
    return made, Basis(basis.array[layer : layer + 1], basis.tag, fed)


def _attended(kv: str | PageFormat, x: Vectors, basis: Basis | None) -> np.ndarray:
    _, heads, d = x.q.shape
    layer = Attention(heads, x.k.shape[1], d, kv, basis)
    layer.append(x.k, x.v)
    return layer.attend(x.q)


def alone(layers: int, bits: int) -> dict[str, tuple[int, str]]:
    """{page format that codes one side of one layer: (layer, side)}; everything else stays float32."""
    found = {}
    for layer in range(layers):
        for side, text in (("keys", f"k{bits}v32"), ("values", f"k32v{bits}")):
            found[formats.get(f"fp32,{layer}:{text}").name] = layer, side
    return found


def sensitivity(summaries: dict[str, dict], layers: int, bits: int, calibration: str = "") -> list[dict]:
    """[{"layer", "keys", "values"}]: divergence in nats a token when only that side of that layer is coded.

    Parameters
    ----------
    summaries : of `quality.summarize`, under the names ``fp32/``, a format of `alone` and `calibration`.
    calibration : empty, or ``/none``.
    """
    rows = [{"layer": layer} for layer in range(layers)]
    for name, (layer, side) in alone(layers, bits).items():
        rows[layer][side] = summaries[f"fp32/{name}{calibration}"]["kl"]
    return rows
