"""Fit the basis of coded pages on text that is never scored, once a model, and keep it.

The moments of keys, values and queries are those of the float32 model, whatever the scheme, so every scheme of a model
shares one basis.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from cachequant.assets import cachedir, texts
from cachequant.assets.store import ModelAsset
from cachequant.decoder.forward import Decoder
from cachequant.errors import InputError
from cachequant.kv import calibration_file
from cachequant.kv.basis import Basis, Moments, fitted, plain
from cachequant.kv.formats import PAGE
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session
from cachequant.schemes import Scheme

CALIBRATIONS = ("auto", "none")
TOKENS, WINDOW = 8192, 1024
SKIPPED = PAGE  # tokens of each window that are never coded: they do not shape the basis
VERSION = 3  # of how it is fitted: part of the file's name


def basis_for(asset: ModelAsset, decoder: Decoder | None = None, calibration: str = "auto") -> Basis:
    """The basis of a model's coded pages.

    Parameters
    ----------
    asset : the model.
    decoder : of this model, used if it is float32; None or another scheme packs one where it is needed.
    calibration : ``auto`` fits on the calibration text, or reads what an earlier call fitted; ``none`` only rotates;
        else the path of a file of `calibration_file`.

    Raises
    ------
    InputError : another calibration.
    CalibrationError : a file that is damaged, or not of this model.
    """
    check_calibration(calibration)
    c = asset.config
    if calibration not in CALIBRATIONS:
        return calibration_file.read(calibration, asset)
    if calibration == "none" or asset.tokenizer is None:
        return plain(c.layers, c.kv_heads, c.head_dim)
    check_float(asset, "calibration 'auto'", "; allowed here is 'none'")
    text = texts.calibration()
    key = hashlib.sha256(f"{asset.sha256}\n{text.sha256}\n{TOKENS} {WINDOW} {VERSION}".encode()).hexdigest()
    target = cachedir.folder("calibration") / f"{key[:32]}.npz"
    if not target.exists():
        basis = fit(asset, decoder)
        with cachedir.atomic_file(target) as path, open(path, "wb") as file:
            np.savez(file, array=basis.array, feedback=basis.feedback, tag=json.dumps(basis.tag))
    with np.load(target, allow_pickle=False) as found:
        return Basis(found["array"], json.loads(str(found["tag"])), found["feedback"])


def fit(asset: ModelAsset, decoder: Decoder | None = None) -> Basis:
    """Fit the basis of a model's coded pages on the calibration text.

    Raises
    ------
    InputError : a model without a tokenizer, or a quantized checkpoint.
    """
    if asset.tokenizer is None:
        raise InputError(f"{asset.name} has no tokenizer, so its keys and values on a text cannot be measured")
    check_float(asset, "calibration")
    text = texts.calibration()
    return fitted(*measure(asset, decoder, text.text), f"{text.name}:{TOKENS}")


def check_calibration(calibration: str) -> None:
    """Raise InputError naming what is allowed, CalibrationError for a file that is damaged."""
    if calibration in CALIBRATIONS:
        return
    if not Path(calibration).is_file():
        raise InputError(f"calibration {calibration!r} is not one of {', '.join(CALIBRATIONS)}, nor a file")
    calibration_file.open_checked(calibration)


def check_float(asset: ModelAsset, what: str, instead: str = "") -> None:
    """Raise InputError for a model whose float32 weights are not at hand."""
    if asset.scheme is not None:
        raise InputError(
            f"{what}: {asset.name} is a checkpoint quantized as {asset.scheme.name!r}, but coded pages are fitted on "
            f"the float32 model{instead}"
        )


def float_decoder(asset: ModelAsset, decoder: Decoder | None) -> Decoder:
    """The given decoder if it is float32, else one of the model's weights."""
    if decoder is None or decoder.scheme != Scheme("fp32"):
        decoder = Decoder(asset.config, asset.weights, Scheme("fp32"))
    return decoder


def measure(asset: ModelAsset, decoder: Decoder | None, text: str) -> tuple[Moments, np.ndarray]:
    """Moments of keys, values and queries over the start of a text, and Gram matrices of the output projections."""
    decoder = float_decoder(asset, decoder)
    ids = asset.tokenizer.encode(text[: 16 * TOKENS])[:TOKENS]
    return moments(decoder, ids, min(WINDOW, asset.config.context)), grams(asset)


def moments(decoder: Decoder, ids: list[int], window: int) -> Moments:
    """Moments of a float32 decoder over token ids, in windows without overlap."""
    c = decoder.config
    shape = c.layers, c.kv_heads
    first = np.zeros((*shape, 2, c.head_dim))
    second, queries = np.zeros((*shape, 2, c.head_dim, c.head_dim)), np.zeros((*shape, c.head_dim, c.head_dim))

    skipped = min(SKIPPED, window // 2)

    def see(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        q, k, v = q[skipped:], k[skipped:], v[skipped:]
        grouped = q.reshape(len(q), c.kv_heads, -1, c.head_dim).transpose(1, 0, 2, 3)
        for side, x in enumerate((k, v)):
            first[layer, :, side] += x.sum(0, dtype=np.float64)
            second[layer, :, side] += _gram(x.swapaxes(0, 1))
        queries[layer] += _gram(grouped.reshape(c.kv_heads, -1, c.head_dim))

    watched, pool = decoder.watched(see), PagePool(c.layers, c.kv_heads, c.head_dim)
    for i in range(0, len(ids), window):
        with Session(watched, pool) as session:
            session.extend(ids[i : i + window], logits="none")
    seen = sum(len(ids[i + skipped : i + window]) for i in range(0, len(ids), window))
    return Moments(first / seen, second / seen, queries / (seen * (c.heads // c.kv_heads)))


def _gram(x: np.ndarray) -> np.ndarray:
    """(heads, n, d) -> (heads, d, d) in float64."""
    x = x.astype(np.float64)
    return np.swapaxes(x, -1, -2) @ x


def grams(asset: ModelAsset) -> np.ndarray:
    """(layers, kv_heads, d, d): what an error of a head's values costs behind the output projection."""
    c = asset.config
    out = np.empty((c.layers, c.kv_heads, c.head_dim, c.head_dim))
    for i in range(c.layers):
        w = np.asarray(asset.weights[f"layers.{i}.attn.o.weight"])  # (width, heads * head_dim)
        columns = w.reshape(len(w), c.heads, c.head_dim).swapaxes(0, 1)
        out[i] = _gram(columns).reshape(c.kv_heads, -1, c.head_dim, c.head_dim).sum(1)
    return out
