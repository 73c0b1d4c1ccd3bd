"""What coding costs: seconds to store a token's keys and values in all layers, page formats in turn in one process."""

import time
from collections.abc import Sequence

import numpy as np

from cachequant.kv.basis import Basis
from cachequant.kv.coding import coding
from cachequant.kv.formats import PAGE
from cachequant.kv.pages import PagePool
from cachequant.kv.table import PageTable
from cachequant.study import timing
from cachequant.study.attention_bench import check_geometry
from cachequant.study.crew import rotations

CALLS = 8  # pages a repetition


class _Writer:
    """Fills the second page of a cache again and again; the first one is never coded."""

    def __init__(self, kv: str, geometry: list[int], basis: Basis | None):
        from cachequant.kernels.append import append

        layers, _, kv_heads, d = geometry
        self._layers, self._append = layers, append
        self._made = coding(kv, layers, kv_heads, d, basis)
        self._table = PageTable(PagePool(layers, kv_heads, d, self._made))
        self._table.reserve(0, PAGE)
        self._pages = self._table.reserve(PAGE, 2 * PAGE)
        rng = np.random.default_rng(0)
        self._k, self._v = (rng.standard_normal((PAGE, kv_heads, d)).astype(np.float32) for _ in range(2))
        self.step()

    def step(self) -> float:
        """Seconds a token."""
        p, begin = self._pages, time.perf_counter()
        for _ in range(CALLS):
            for layer in range(self._layers):
                self._append(self._k, self._v, p.exact, layer, PAGE, p.coded, p.coding)
        return (time.perf_counter() - begin) / (CALLS * PAGE)


def measure(
    formats: Sequence[str], geometry: Sequence[int], repeats: int = 9, basis: Basis | None = None
) -> dict[str, dict]:
    """{format: summary of seconds a token}, of storing whole pages, coding included.

    Parameters
    ----------
    formats : of pages; ``fp32`` shows what writing the rows takes.
    geometry : (layers, heads, kv_heads, head_dim).
    basis : of the coded formats; None rotates only, which takes less than a calibrated one.
    """
    geometry = check_geometry(geometry)
    writers = {kv: _Writer(kv, geometry, basis) for kv in formats}
    found = {kv: [] for kv in writers}
    for _, order in rotations(list(writers), repeats):
        for kv in order:
            found[kv].append(writers[kv].step())
    return {kv: timing.summary(seconds) for kv, seconds in found.items()}
