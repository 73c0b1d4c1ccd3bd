"""Attention over pages: the truth in float64, and the same bits whatever the chunk, the tile and the threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import naive_attention as naive
from cachequant import kernels
from cachequant.kernels import append, attention
from cachequant.kernels.huge_pages import aligned
from cachequant.kernels.slab import ALIGN

LAYERS, LAYER = 2, 1


class Pages:
    """Pages at shuffled addresses, full of NaN where nothing was written."""

    def __init__(self, tokens, kv_heads, d, seed=0):
        self.shape = kv_heads, d
        count = -(-tokens // naive.PAGE)
        shape = 2 * count + 1, naive.page_floats(LAYERS, kv_heads, d)
        self.memory = aligned(4 * shape[0] * shape[1], ALIGN).view(np.float32).reshape(shape)
        self.memory[:] = np.nan
        rows = np.random.default_rng(seed).permutation(2 * count)[:count]
        self.addresses = self.memory.ctypes.data + rows * self.memory.strides[0]
        self.rows = rows

    def append(self, k, v, start=0):
        append.append(k, v, self.addresses, LAYER, start)

    def attend(self, q, start, scale=None):
        out = np.full_like(q, np.nan)
        attention.attend(q, self.addresses, LAYER, start, self.shape[0], scale or q.shape[2] ** -0.5, out)
        return out


def random(tokens, heads, kv_heads, d, seed=0, size=1.0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((tokens, h, d), dtype=np.float32) for h in (heads, kv_heads, kv_heads))
    return q * np.float32(size), k * np.float32(size), v


def run(q, k, v, cuts, threads=None):
    """Append and attend chunk by chunk, as a decoder does."""
    before = kernels.get_threads()
    kernels.set_threads(threads or before)
    try:
        pages, outs = Pages(len(q), *k.shape[1:]), []
        for low, high in zip([0, *cuts], [*cuts, len(q)], strict=True):
            pages.append(k[low:high], v[low:high], low)
            outs.append(pages.attend(q[low:high], low))
        return np.concatenate(outs)
    finally:
        kernels.set_threads(before)


@pytest.mark.parametrize("d", [16, 20, 32, 64, 80, 96, 128])
@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (5, 5), (6, 3), (9, 3), (4, 1), (8, 1), (7, 1)])
def test_matches_float64(heads, kv_heads, d):
    q, k, v = random(300, heads, kv_heads, d)
    pages = Pages(300, kv_heads, d)
    pages.append(k, v)
    start = 300 - 37
    np.testing.assert_allclose(
        pages.attend(q[start:], start), naive.attention(q[start:], k, v, start, d**-0.5), atol=3e-6
    )


@pytest.mark.parametrize("tokens", [*range(1, 34), 63, 64, 65, 255, 256, 257, 288, 511, 512, 513])
def test_every_page_fill(tokens):
    q, k, v = random(tokens, 3, 1, 16)
    expected = naive.attention(q, k, v, 0, 0.25)
    np.testing.assert_allclose(run(q, k, v, []), expected, atol=3e-6)
    last = run(q, k, v, [tokens - 1] if tokens > 1 else [])[-1:]
    np.testing.assert_allclose(last, expected[-1:], atol=3e-6)


@pytest.mark.parametrize("heads, kv_heads, d", [(9, 3, 64), (4, 4, 20), (8, 1, 80), (5, 1, 16)])
def test_bits_do_not_depend_on_chunks_or_threads(heads, kv_heads, d):
    tokens = 600
    q, k, v = random(tokens, heads, kv_heads, d, seed=d)
    whole = run(q, k, v, [])
    rng = np.random.default_rng(d)
    for _ in range(4):
        cuts = sorted(rng.choice(np.arange(1, tokens), rng.integers(1, 12), replace=False).tolist())
        assert run(q, k, v, cuts).tobytes() == whole.tobytes(), cuts
    assert run(q, k, v, list(range(1, tokens))).tobytes() == whole.tobytes()
    assert run(q, k, v, [], threads=1).tobytes() == whole.tobytes()
    assert run(q, k, v, list(range(256, tokens)), threads=1).tobytes() == whole.tobytes()


def test_long_context_shared_between_threads_or_not():
    q, k, v = random(2100, 3, 1, 32, seed=5)
    pages = Pages(2100, 1, 32)
    pages.append(k, v)
    alone = pages.attend(q[-1:], 2099)
    assert pages.attend(q[-40:], 2060)[-1:].tobytes() == alone.tobytes()
    assert pages.attend(q, 0)[-1:].tobytes() == alone.tobytes()
    np.testing.assert_allclose(alone, naive.attention(q[-1:], k, v, 2099, 32**-0.5), atol=3e-6)


@pytest.mark.parametrize("size", [30.0, 1e4])
def test_large_scores_stay_finite(size):
    q, k, v = random(270, 4, 2, 32, size=size)
    out = run(q, k, v, [])
    assert np.isfinite(out).all()
    if size == 30.0:  # scores of several hundred: float32 leaves about 1e-4 of them
        np.testing.assert_allclose(out, naive.attention(q, k, v, 0, 32**-0.5), atol=2e-3)


def test_equal_scores_average():
    q, k, v = random(300, 2, 1, 16)
    pages = Pages(300, 1, 16)
    pages.append(np.zeros_like(k), v)
    np.testing.assert_allclose(pages.attend(q, 0)[-1, 0], v.astype(np.float64).mean((0, 1)), atol=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_only_visible_rows_matter(poison):
    tokens, later = 290, 310
    q, k, v = random(later, 6, 2, 20)
    clean = Pages(later, 2, 20)
    clean.append(k[:tokens], v[:tokens])
    expected = clean.attend(q[:tokens], 0), clean.attend(q[tokens - 1 : tokens], tokens - 1)

    dirty = Pages(later, 2, 20)
    dirty.memory[:] = poison
    dirty.append(k[:tokens], v[:tokens])
    k[tokens:], v[tokens:] = poison, poison
    dirty.append(k[tokens:], v[tokens:], tokens)  # rows after the queries, in the same and in the next pages
    assert dirty.attend(q[:tokens], 0).tobytes() == expected[0].tobytes()
    assert dirty.attend(q[tokens - 1 : tokens], tokens - 1).tobytes() == expected[1].tobytes()
    whole = dirty.attend(q, 0)  # queries of one tile on both sides of the first bad row
    assert whole[:tokens].tobytes() == expected[0].tobytes()


def test_append_writes_its_rows_and_nothing_else():
    tokens, kv_heads, d = 70, 3, 20
    _, k, v = random(tokens, 3, kv_heads, d)
    pages = Pages(tokens, kv_heads, d)
    for low, high in ((0, 1), (1, 31), (31, 33), (33, 70)):
        pages.append(k[low:high], v[low:high], low)
    got = naive.read_pages(pages.memory[pages.rows], LAYERS, LAYER, kv_heads, d, tokens)
    np.testing.assert_array_equal(got, (k, v))
    written = np.isfinite(pages.memory).sum()
    assert written == 2 * tokens * kv_heads * d


def test_strided_rows():
    """Queries, keys and values as slices of one fused projection."""
    tokens, heads, kv_heads, d = 50, 6, 2, 16
    fused = np.random.default_rng(1).standard_normal((tokens, heads + 2 * kv_heads, d), dtype=np.float32)
    q, k, v = np.split(fused, [heads, heads + kv_heads], axis=1)
    a, b = Pages(tokens, kv_heads, d), Pages(tokens, kv_heads, d)
    a.append(k, v)
    b.append(k.copy(), v.copy())
    assert a.attend(q, 0).tobytes() == b.attend(q.copy(), 0).tobytes()


def test_concurrent_calls():
    """Two sessions that decode at the same time in threads of their own."""
    q, k, v = random(700, 6, 3, 64)
    pages = Pages(700, 3, 64)
    pages.append(k, v)
    alone = [pages.attend(q[t : t + 1], t).tobytes() for t in range(500, 700)]

    def decode(_):
        return [pages.attend(q[t : t + 1], t).tobytes() for t in range(500, 700)]

    with ThreadPoolExecutor(8) as threads:  # scratch memory that was freed too early was wrong in 2 of 100 calls
        assert all(got == alone for got in threads.map(decode, range(40)))
