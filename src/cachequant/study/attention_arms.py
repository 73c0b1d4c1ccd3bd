"""One token's attention over everything cached, all layers, as arms: our page formats, and torch's attention.

Runs inside a worker. Keys and values are random; nothing about speed depends on what they are.
"""

import time
from collections.abc import Callable

import numpy as np

from cachequant.errors import InputError
from cachequant.kv import formats
from cachequant.kv.formats import PAGE

TORCH = {"sdpa-fp32": "float32", "sdpa-fp16": "float16"}  # arm: type of torch's tensors
PREFIX = "kv-"
PASSES_SECONDS = 0.25
FILL = 256  # tokens written at once


class OurCache:
    """Pages of one format, for one sequence of random keys and values."""

    def __init__(self, kv: str, geometry: tuple[int, int, int, int], tokens: int, threads: int):
        from cachequant.kernels import append, attention, set_threads
        from cachequant.kv.coding import coding
        from cachequant.kv.pages import PagePool
        from cachequant.kv.table import PageTable

        set_threads(threads)
        layers, heads, kv_heads, d = geometry
        made = coding(kv, layers, kv_heads, d)
        self._keep, rng = made, np.random.default_rng(0)
        self._table = PageTable(PagePool(layers, kv_heads, d, made))
        x = rng.standard_normal((FILL, 2 * kv_heads, d)).astype(np.float32)
        newest = (tokens - 1) // PAGE * PAGE  # the page of the token that is decoded has exact rows
        for start in [*range(0, newest, FILL), newest]:
            count = min(FILL, newest - start) or tokens - newest
            self._table.settle()
            self._pages = pages = self._table.reserve(start, start + count)
            for layer in range(layers):
                k, v = x[:count, :kv_heads], x[:count, kv_heads:]
                append.append(k, v, pages.exact, layer, start, pages.coded, pages.coding)
        self._geometry, self._tokens = geometry, tokens
        self._q = rng.standard_normal((1, heads, d)).astype(np.float32)
        self._out, self._attend = np.empty_like(self._q), attention.attend
        self.nbytes = self._table.nbytes

    def step(self) -> None:
        """Attention of the newest token in every layer."""
        layers, _, kv_heads, d = self._geometry
        p, start, scale = self._pages, self._tokens - 1, d**-0.5
        for layer in range(layers):
            self._attend(self._q, p.exact, layer, start, kv_heads, scale, self._out, p.coded, p.coding)


class TorchCache:
    """torch's scaled_dot_product_attention over tensors of one type, grouped heads by `enable_gqa`."""

    def __init__(self, dtype: str, geometry: tuple[int, int, int, int], tokens: int, threads: int):
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        layers, heads, kv_heads, d = geometry
        kind = getattr(torch, dtype)
        self._k, self._v = (torch.randn(layers, 1, kv_heads, tokens, d).to(kind) for _ in range(2))
        self._q, self._gqa = torch.randn(1, heads, 1, d).to(kind), heads != kv_heads
        self._attend = torch.nn.functional.scaled_dot_product_attention
        self.nbytes = self._k.nbytes + self._v.nbytes

    def step(self) -> None:
        """Attention of the newest token in every layer."""
        for k, v in zip(self._k, self._v, strict=True):
            self._attend(self._q, k, v, enable_gqa=self._gqa)


def get(name: str) -> Callable[..., "OurCache | TorchCache"]:
    """How to build an arm for (geometry, tokens, threads). Raises InputError for an unknown name."""
    if name in TORCH:
        return lambda geometry, tokens, threads: TorchCache(TORCH[name], geometry, tokens, threads)
    try:
        kv = formats.get(name.removeprefix(PREFIX)).name if name.startswith(PREFIX) else None
    except InputError as error:
        raise InputError(f"unknown arm {name!r}: {error}") from None
    if kv is None:
        raise InputError(
            f"unknown arm {name!r}: not {', '.join(TORCH)}, nor {PREFIX} and a page format, such as kv-k4v4"
        )
    return lambda geometry, tokens, threads: OurCache(kv, geometry, tokens, threads)


class AttentionWork:
    """One arm at one geometry and context.

    Parameters
    ----------
    arm, threads : which arm, and of how many threads.
    geometry : (layers, heads, kv_heads, head_dim).
    tokens : that are cached, the newest one among them.
    stream_bytes : as many copies of the cache as take this together are read in turn, so that none is in a cache of the
        CPU when its turn comes again.
    """

    def __init__(self, arm: str, threads: int, geometry: list[int], tokens: int, stream_bytes: int):
        build = get(arm)
        first = build(tuple(geometry), tokens, threads)
        self._copies = [first]
        for _ in range(-(-stream_bytes // first.nbytes) - 1):
            self._copies.append(build(tuple(geometry), tokens, threads))
        self._next = 0
        self.step()

    def facts(self) -> dict:
        return {"bytes": self._copies[0].nbytes, "copies": len(self._copies)}

    def step(self) -> dict:
        """Seconds of one token's attention in all layers, over as many tokens as fit the time."""
        calls, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < PASSES_SECONDS or not calls:
            self._copies[self._next].step()
            self._next = (self._next + 1) % len(self._copies)
            calls += 1
        return {"seconds": spent / calls}
