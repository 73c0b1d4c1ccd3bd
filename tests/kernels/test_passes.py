"""All blocks in one parallel region: the bits of the same blocks kernel by kernel, over segments of attention too."""

import numpy as np
import pytest

from cachequant import kernels, schemes
from cachequant.decoder.forward import Decoder
from cachequant.decoder.random import TINY
from cachequant.decoder.taps import tapped
from cachequant.decoder.weights import tensor_shapes
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session

CHUNKS = 300, 1, 219, 2, 1, 31
SCHEMES = "fp32", "int8", "bfp8", "w8", "bfp8-w", "w8a12", "int8-hadamard", "block16-snap8"


def run(decoder, ids):
    config, at, parts = decoder.config, 0, []
    with Session(decoder, PagePool(config.layers, config.kv_heads, config.head_dim)) as session:
        for length in CHUNKS:
            parts.append(session.extend(ids[at : at + length], "all"))
            at += length
    return np.concatenate(parts).view(np.int32)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("config", TINY.values(), ids=TINY)
def test_the_bits_are_those_of_single_kernels(config, scheme, rng):
    weights = {n: rng.standard_normal(s, np.float32) * np.float32(0.1) for n, s in tensor_shapes(config).items()}
    decoder, ids = Decoder(config, weights, schemes.get(scheme)), rng.integers(0, config.vocab, sum(CHUNKS))
    want, before = run(tapped(decoder, lambda layer, site, x: x), ids), kernels.get_threads()
    try:
        for threads in range(1, kernels.most_threads() + 1):
            kernels.set_threads(threads)
            for _ in range(3):  # memory that is given back too early shows only sometimes
                np.testing.assert_array_equal(run(decoder, ids), want)
    finally:
        kernels.set_threads(before)
