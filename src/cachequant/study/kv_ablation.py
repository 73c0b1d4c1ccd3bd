"""What each part of the code of keys and values buys: errors in NumPy, and models of which parts are left out."""

import numpy as np

from cachequant.assets import texts
from cachequant.decoder.model import Model
from cachequant.errors import InputError
from cachequant.kv import calibration
from cachequant.kv.basis import Basis, fitted
from cachequant.kv.coding import coding
from cachequant.kv.formats import PAGE, PageFormat
from cachequant.study import distortion
from cachequant.study.kv_recoded import RecodedModel
from cachequant.study.kv_vectors import SIDES, SKIPPED, Vectors, into, out_of

BASES = {
    "no-rotation": {"rotate": False, "centre": False, "balanced": False, "feedback": False},
    "rotation": {"rotate": True, "centre": False, "balanced": False, "feedback": False},
    "means": {"rotate": True, "centre": True, "balanced": False, "feedback": False},
    "balance": {"rotate": True, "centre": False, "balanced": True, "feedback": False},
    "means-balance": {"rotate": True, "centre": True, "balanced": True, "feedback": False},
    "means-feedback": {"rotate": True, "centre": True, "balanced": True, "feedback": True},
    "feedback": {"rotate": True, "centre": False, "balanced": True, "feedback": True},
    "calibrated-unrotated": {"rotate": False, "centre": True, "balanced": True, "feedback": True},
}
# (title, basis, scale search, own page exact, page 0 exact), each with one part more than the one before
STAGES = (
    ("Lloyd-Max codes", "no-rotation", False, False, False),
    ("+ rotation", "rotation", False, False, False),
    ("+ scale search", "rotation", True, False, False),
    ("+ means", "means", True, False, False),
    ("+ balance", "means-balance", True, False, False),
    ("+ feedback", "means-feedback", True, False, False),
    ("+ own page exact", "means-feedback", True, True, False),
    ("+ page 0 exact", "means-feedback", True, True, True),
)
LEFT_OUT = ("rms", "coded")  # without the scale search; without the exact own page


class Ablated:
    """A float32 model whose calibrations are also the names of `BASES`; everything else is the model's.

    Such a name may be followed by ``+rms``, for scales that are the root mean square instead of searched ones, and by
    ``+coded``, for queries that see the codes of their own page too.

    Parameters
    ----------
    model : in fp32.
    tokens : of the calibration text, that the bases are fitted on; the calibration proper takes `calibration.TOKENS`.
    """

    def __init__(self, model: Model, tokens: int = calibration.TOKENS):
        self._model, self._bases = model, {}
        ids = model.tokenizer.encode(texts.calibration().text[: 16 * tokens])[:tokens]
        text = model.tokenizer.decode(ids)
        self.moments, self.gram = calibration.measure(model._asset, model._decoder, text)

    def __getattr__(self, name: str):
        return getattr(self._model, name)

    def basis(self, name: str) -> Basis:
        """The basis with the parts that `name` says."""
        if name not in self._bases:
            self._bases[name] = fitted(self.moments, self.gram, name, **BASES[name])
        return self._bases[name]

    def with_kv(self, kv: str | PageFormat, calibration: str = "auto") -> Model:
        """The model with a page format and one of these bases, or one that the model knows.

        Raises
        ------
        InputError : something to be left out that is neither ``rms`` nor ``coded``.
        """
        name, *without = calibration.split("+")
        if name not in BASES:
            return self._model.with_kv(kv, calibration)
        unknown = [part for part in without if part not in LEFT_OUT]
        if unknown:
            raise InputError(f"{unknown[0]!r} in {calibration!r} is not one of {', '.join(LEFT_OUT)}")
        c = self._model.config
        made = coding(kv, c.layers, c.kv_heads, c.head_dim, self.basis(name))
        if without:
            return RecodedModel(self._model, made, search="rms" not in without, own="coded" not in without)
        return Model(self._model._asset, self._model._decoder, made)


def stages(study: Ablated, seen: dict[int, Vectors], bits: tuple[int, int]) -> list[dict]:
    """Relative squared error of keys, of values, of scores and of attention's output after each part, mean over layers.

    Parameters
    ----------
    study : has the bases.
    seen : `kv_vectors.capture` of a text that the bases were not fitted on.
    bits : of keys and of values.

    Returns
    -------
    [{"stage", "keys", "values", "scores", "output"}]: errors of keys and values as parts of their energy; of scores as
    a part of what the queries see of keys around their mean, which softmax can tell apart; of the output as a part of
    its energy.
    """
    bases = {name: study.basis(name) for name in dict.fromkeys(s[1] for s in STAGES)}
    exact = {layer: attend(x, x.k, x.v, np.ones((len(x.k), len(x.k)), bool)) for layer, x in seen.items()}
    rows = []
    for title, name, search, own, first in STAGES:
        errors = {key: [] for key in ("keys", "values", "scores", "output")}
        for layer, x in seen.items():
            k, v = (
                _read_back(bases[name], layer, side, x.side(side), b, search)
                for side, b in zip(SIDES, bits, strict=True)
            )
            lost_k, lost_v = (x.k - k)[SKIPPED:], (x.v - v)[SKIPPED:]
            errors["keys"].append(distortion.relative(lost_k, x.k[SKIPPED:]))
            errors["values"].append(distortion.relative(lost_v, x.v[SKIPPED:]))
            errors["scores"].append(_weighed(lost_k, x.k[SKIPPED:], study.moments.queries[layer]))
            out = attend(x, k, v, seen_exactly(len(k), own, first))
            errors["output"].append(distortion.relative((out - exact[layer])[SKIPPED:], exact[layer][SKIPPED:]))
        rows.append({"stage": title, **{key: float(np.mean(e)) for key, e in errors.items()}})
    return rows


def _read_back(basis: Basis, layer: int, side: str, x: np.ndarray, bits: int, search: bool) -> np.ndarray:
    """(T, kv_heads, d) vectors as their codes give them back."""
    y = into(basis, layer, side, x)
    fed = None if basis.feedback is None else basis.feedback[layer, :, SIDES.index(side)]
    return out_of(basis, layer, side, distortion.coded(y, bits, search, fed))


def _weighed(error: np.ndarray, x: np.ndarray, weights: np.ndarray) -> float:
    """Energy of (T, kv_heads, d) errors under (kv_heads, d, d) weights, over that of x around its mean."""
    a, b = (np.einsum("thd,hde,the->", y, weights, y) for y in (error - error.mean(0), x - x.mean(0)))
    return float(a / b)


def seen_exactly(tokens: int, own: bool = True, first: bool = True) -> np.ndarray:
    """(T, T) whether the query of a row sees the exact key of a column: in its own page, and in page 0."""
    page = np.arange(tokens) // PAGE
    return (own & (page[:, None] == page)) | (first & (page == 0))[None]


def attend(x: Vectors, k: np.ndarray, v: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """(T, heads, d) causal attention that reads the captured keys and values where `exact`, else `k` and `v`."""
    tokens, heads, d = x.q.shape
    group, causal = heads // x.k.shape[1], np.tri(tokens, dtype=bool)
    out = np.empty_like(x.q)
    for head in range(heads):
        h, q = head // group, x.q[:, head] * np.float32(d**-0.5)
        scores = np.where(exact, q @ x.k[:, h].T, q @ k[:, h].T)
        scores = np.where(causal, scores - np.where(causal, scores, -np.inf).max(1, keepdims=True), -np.inf)
        weights = np.exp(scores)
        weights /= weights.sum(1, keepdims=True)
        out[:, head] = (weights * exact) @ x.v[:, h] + (weights * ~exact) @ v[:, h]
    return out
