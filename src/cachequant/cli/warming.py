"""Compiles every kernel that a command can need, by running a small model of each family under each scheme."""

import time

import numpy as np

from cachequant import schemes
from cachequant.cli.output import Report
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.forward import Decoder
from cachequant.decoder.random import TINY
from cachequant.decoder.weights import tensor_shapes
from cachequant.kernels import score
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session


def compile_all(report: Report) -> float:
    """Runs all kernels once and returns the seconds that it took; compiled code stays in the cache folder."""
    begin = time.perf_counter()
    presets = [name for name, scheme in schemes.PRESETS.items() if not scheme.calibrated]
    names = [*presets, *(f"int8+head:{head}" for head in schemes.HEADS), "block16-snap8", "w8+head"]
    for done, (config, name) in enumerate(work := [(c, n) for c in TINY.values() for n in names]):
        report(done, len(work), f"compiling {config.family} {name}")
        _run(config, name)
    return time.perf_counter() - begin


def _run(config: DecoderConfig, scheme: str) -> None:
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(s, np.float32) * np.float32(0.1) for n, s in tensor_shapes(config).items()}
    decoder = Decoder(config, weights, schemes.get(scheme))
    ids = rng.integers(0, config.vocab, 520)
    with Session(decoder, PagePool(config.layers, config.kv_heads, config.head_dim)) as session:
        logits = session.extend(ids, "all")
        session.extend(ids[:1])
    score.score(logits, ids, None)
    score.score(logits, ids, logits)
