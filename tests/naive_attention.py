"""Slow, obvious float64 truth for attention, and the page layout taken apart with NumPy."""

import numpy as np

PAGE = 32


def attention(q, k, v, start, scale):
    """Causal attention: q (T, heads, d) at positions start.., k and v (start + T, kv_heads, d) -> (T, heads, d)."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out = np.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            seen = start + t + 1
            s = k[:seen, h // group] @ q[t, h] * scale
            p = np.exp(s - s.max())
            out[t, h] = p / p.sum() @ v[:seen, h // group]
    return out


def page_floats(layers, kv_heads, d):
    """Float32 values of one page."""
    return layers * 2 * kv_heads * d * PAGE


def read_pages(memory, layers, layer, kv_heads, d, tokens):
    """K and V (tokens, kv_heads, d) of one layer out of `memory` (pages, floats of a page)."""
    pages = memory.reshape(-1, layers, 2, kv_heads, d * PAGE)[:, layer]
    k = pages[:, 0].reshape(-1, kv_heads, d, PAGE).transpose(0, 3, 1, 2).reshape(-1, kv_heads, d)
    v = pages[:, 1].reshape(-1, kv_heads, PAGE, d).transpose(0, 2, 1, 3).reshape(-1, kv_heads, d)
    return k[:tokens], v[:tokens]
