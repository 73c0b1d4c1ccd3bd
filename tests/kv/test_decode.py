"""Decoding pages of codes, against the codec in NumPy."""

import numpy as np
import pytest

from cachequant.kernels import append
from cachequant.kv import codec, formats
from cachequant.kv.basis import Basis, plain
from cachequant.kv.coding import coding
from cachequant.kv.decode import decode
from cachequant.kv.pages import PagePool
from cachequant.kv.table import PageTable

PAGE = formats.PAGE


def on_grid(x):
    """Rounded to 1/256, so that what is added and scaled by powers of two is exact."""
    return (np.round(x * 256) / 256).astype(np.float32)


@pytest.mark.parametrize("kv", ["fp16", "k2v3", "k4v8", "k8v2", "k3v16", "k32v4,1:k4v3"])
@pytest.mark.parametrize("d", [16, 48, 64])
def test_pages_decode_to_what_the_codec_says(rng, kv, d):
    layers, kv_heads = 2, 3
    array = plain(layers, kv_heads, d).array.copy()
    turns = np.stack([np.eye(d)[rng.permutation(d)] * 2.0 for _ in range(2)])  # exact, and no symmetric matrices
    for side, turn in enumerate(turns):
        array[:, :, side, 0] = on_grid(rng.standard_normal((layers, kv_heads, d)))
        out = turn.T / 4
        array[:, :, side, 1:] = np.concatenate([turn, out.T if side == 0 else out])
    made = coding(kv, layers, kv_heads, d, Basis(array, "test"))
    table = PageTable(PagePool(layers, kv_heads, d, made))
    x = on_grid(rng.standard_normal((2, layers, 2 * PAGE + PAGE, kv_heads, d)))
    pages = table.reserve(0, 3 * PAGE)
    for layer in range(layers):
        append.append(x[0, layer], x[1, layer], pages.exact, layer, 0, pages.coded, pages.coding)
    for layer, sides in enumerate(made.format.layers(layers)):
        got = np.full((2, kv_heads, 3 * PAGE, d), np.nan, np.float32)[:, :, PAGE:]  # slices of a larger array
        decode(pages.coded[1:], made, layer, *got)
        for side, bits in enumerate(sides):
            want = x[side, layer, PAGE:].swapaxes(0, 1)
            if bits == 16:
                want = want.astype(np.float16)
            elif bits <= 8:
                means, turn = array[layer, :, side, :1], turns[side]
                codes, scales = codec.encode(((want - means) @ turn).astype(np.float32), bits)
                want = codec.decode(codes, scales, bits) @ (turn.T / 4) + means
            np.testing.assert_allclose(got[side], want, atol=2e-6)


def test_no_pages():
    made = coding("k4v4", 1, 1, 16)
    decode(np.empty(0, np.int64), made, 0, *np.empty((2, 1, 0, 16), np.float32))
