"""Fit the basis of coded pages on text that is never scored, once a model, and keep it.

The moments of keys, values and queries are those of the float32 model, whatever the scheme, so every scheme of a model
shares one basis. A quantized checkpoint has its own, fitted on its own forward pass.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from cachequant import transform
from cachequant.assets import cachedir, texts
from cachequant.assets.store import ModelAsset
from cachequant.decoder.forward import Decoder
from cachequant.errors import InputError
from cachequant.kv import calibration_file
from cachequant.kv.basis import Basis, Moments, fitted, plain
from cachequant.kv.formats import PAGE
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session
from cachequant.quantize import Quantized, dequantize
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
    decoder : of this model, used if it is the one to fit on, see `fit_decoder`; else one is packed where it is needed.
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
    InputError : a model without a tokenizer.
    """
    if asset.tokenizer is None:
        raise InputError(f"{asset.name} has no tokenizer, so its keys and values on a text cannot be measured")
    text = texts.calibration()
    return fitted(*measure(asset, decoder, text.text), f"{text.name}:{TOKENS}")


def check_calibration(calibration: str) -> None:
    """Raise InputError naming what is allowed, CalibrationError for a file that is damaged."""
    if calibration in CALIBRATIONS:
        return
    if not Path(calibration).is_file():
        raise InputError(f"calibration {calibration!r} is not one of {', '.join(CALIBRATIONS)}, nor a file")
    calibration_file.open_checked(calibration)


def fit_decoder(asset: ModelAsset, decoder: Decoder | None) -> Decoder:
    """The decoder that keys and values are measured on: float32, or of the scheme of a quantized checkpoint.

    decoder : taken if it is that.
    """
    scheme = asset.scheme or Scheme("fp32")
    if decoder is None or decoder.scheme != scheme:
        decoder = Decoder(asset.config, asset.weights, scheme)
    return decoder


def measure(asset: ModelAsset, decoder: Decoder | None, text: str) -> tuple[Moments, np.ndarray]:
    """Moments of keys, values and queries over the start of a text, and Gram matrices of the output projections."""
    decoder = fit_decoder(asset, decoder)
    ids = asset.tokenizer.encode(text[: 16 * TOKENS])[:TOKENS]
    return moments(decoder, ids, min(WINDOW, asset.config.context)), grams(asset)


def moments(decoder: Decoder, ids: list[int], window: int) -> Moments:
    """Moments of a decoder over token ids, in windows without overlap."""
    c = decoder.config
    shape = c.layers, c.kv_heads
    first = np.zeros((*shape, 2, c.head_dim))
    second, queries = np.zeros((*shape, 2, c.head_dim, c.head_dim)), np.zeros((*shape, c.head_dim, c.head_dim))

    skipped = min(SKIPPED, window // 2)

    def see(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        q, k, v = q[skipped:], k[skipped:], v[skipped:]
        grouped = q.reshape(len(q), c.kv_heads, c.heads // c.kv_heads, c.head_dim).transpose(1, 0, 2, 3)
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
        w = _values(asset, f"layers.{i}.attn.o.weight")  # (width, heads * head_dim)
        columns = w.reshape(len(w), c.heads, c.head_dim).swapaxes(0, 1)
        out[i] = _gram(columns).reshape(c.kv_heads, -1, c.head_dim, c.head_dim).sum(1)
    return out


def _values(asset: ModelAsset, name: str) -> np.ndarray:
    """A matrix of a block in float32; what a checkpoint's codes stand for, in the basis of the inputs."""
    found = asset.weights[name]
    if not isinstance(found, Quantized):
        return np.asarray(found)
    w = dequantize(found)
    if asset.scheme.transform is None:
        return w
    changed = transform.basis(asset.scheme.transform, w.shape[1])
    return transform.walsh_hadamard(w, changed.block) * changed.factors
