"""Bits where they matter: how much worse the model gets with one side of one layer coded, and who gets how many bits.

Each side of each layer is coded in 3 bits alone, and the Kullback-Leibler divergence of the predictions from those with
float32 pages is measured on text that the basis was not fitted on. Errors of different sides hardly interact and the
divergence grows with the square of an error, so that of any choice of bits is taken as the sum of the measured ones
times the ratio of the codes' distortions. Its smallest value under a budget is found by giving bits one at a time to
the side that gains most: distortion is convex in the bits (Shoham & Gersho 1988).
"""

import hashlib
import json
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from cachequant.assets import cachedir, texts
from cachequant.assets.store import ModelAsset
from cachequant.decoder.forward import Decoder
from cachequant.errors import InputError
from cachequant.kernels.score import score
from cachequant.kv import calibration, formats
from cachequant.kv.basis import Basis
from cachequant.kv.coding import coding
from cachequant.kv.formats import PAGE, PageFormat
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session

DISTORTION = {2: 0.111, 3: 0.0296, 4: 0.0072}  # of a Gaussian vector of 64 values with a searched scale
MEASURED, SIDES = 3, ("k3v32", "k32v3")  # bits, and formats that code one side
AVERAGE = 3  # bits of a code; its scale adds 16 bits a vector
TOKENS = 256
VERSION = 1  # of how it is measured: part of the file's name


def mixed(asset: ModelAsset, decoder: Decoder | None, basis: Basis) -> PageFormat:
    """The format that `mixed` stands for on a model: measured at first use, then kept.

    Raises
    ------
    InputError : a model that cannot read text.
    """
    if asset.tokenizer is None:
        raise InputError(f"page format 'mixed' is measured on text, but {asset.name} has no tokenizer")
    text = texts.calibration()
    key = f"{asset.sha256}\n{text.sha256}\n{basis.sha256}\n{TOKENS} {MEASURED} {VERSION}"
    target = cachedir.folder("calibration") / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    if not target.exists():
        end = calibration.TOKENS + TOKENS  # behind what the basis was fitted on
        ids = asset.tokenizer.encode(text.text[: 16 * end])[:end][-TOKENS:]
        found = measure(calibration.fit_decoder(asset, decoder), basis, ids[: asset.config.context])
        with cachedir.atomic_file(target) as path:
            path.write_text(json.dumps({"divergence": found.tolist()}))
    return allocate(json.loads(target.read_text())["divergence"])


def measure(decoder: Decoder, basis: Basis, ids: Sequence[int]) -> np.ndarray:
    """(layers, 2) mean divergence in nats, keys and values, of a decoder with one side coded."""
    c, ids = decoder.config, np.asarray(ids, np.int64)
    seen = slice(2 * PAGE, len(ids) - 1)  # before it nobody reads a code

    def logits(kv: str) -> np.ndarray:
        pages = coding(kv, c.layers, c.kv_heads, c.head_dim, None if kv == "fp32" else basis)
        with Session(decoder, PagePool(c.layers, c.kv_heads, c.head_dim, pages)) as session:
            return decoder.logits(session.extend(ids, logits="hidden")[seen])

    exact, targets = logits("fp32"), ids[seen.start + 1 :]
    return np.array(
        [
            [score(logits(f"fp32,{layer}:{side}"), targets, exact).kl.mean() for side in SIDES]
            for layer in range(c.layers)
        ]
    )


def allocate(divergence: Sequence[Sequence[float]], average: float = AVERAGE) -> PageFormat:
    """The format with the smallest expected divergence.

    Parameters
    ----------
    divergence : (layers, 2) measured with 3 bits.
    average : bits of a code over all sides, from 2 to 4.
    """
    costs = np.asarray(divergence, np.float64) / DISTORTION[MEASURED]
    steps = {b: DISTORTION[b] - DISTORTION[b + 1] for b in (2, 3)}
    bits = np.full(costs.shape, 2)
    for _ in range(int(average * bits.size) - bits.sum()):
        gains = costs * np.vectorize(lambda b: steps.get(b, -np.inf))(bits)
        bits.flat[gains.argmax()] += 1
    layers = [f"k{k}v{v}" for k, v in bits]
    runs = [(name, [i for i, _ in run]) for name, run in groupby(enumerate(layers), lambda item: item[1])]
    base = f"k{AVERAGE}v{AVERAGE}"
    others = [f"{f'{r[0]}-{r[-1]}' if len(r) > 1 else r[0]}:{name}" for name, r in runs if name != base]
    return formats.get(",".join([base, *others]))
