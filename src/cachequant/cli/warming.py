"""Compiles every kernel that a command can need, by running a small model of each family under each scheme."""

import time

import numpy as np

from cachequant import schemes
from cachequant.cli.output import Report
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.forward import Decoder
from cachequant.decoder.weights import tensor_shapes
from cachequant.kernels import score
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session

TINY = dict(vocab=67, context=600, width=64, layers=1, heads=2, head_dim=32, ffn=96, norm_eps=1e-5, tied=True)
LLAMA = DecoderConfig(family="llama", activation="silu", kv_heads=1, rope_theta=1e4, **TINY)
GPT2 = DecoderConfig(
    family="gpt2", activation="gelu_tanh", kv_heads=2, attention_bias=True, output_bias=True, mlp_bias=True, **TINY
)


def compile_all(report: Report) -> float:
    """Runs all kernels once and returns the seconds that it took; compiled code stays in the cache folder."""
    begin = time.perf_counter()
    presets = [name for name, scheme in schemes.PRESETS.items() if not scheme.calibrated]
    names = [*presets, *(f"int8+head:{head}" for head in schemes.HEADS), "block16-snap8", "w8+head"]
    for done, (config, name) in enumerate(work := [(c, n) for c in (LLAMA, GPT2) for n in names]):
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
