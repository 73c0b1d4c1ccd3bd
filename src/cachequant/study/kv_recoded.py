"""A model whose pages are coded without parts that the library always has: the scale search, and the exact own page.

The decoder, its pages and its kernels are the ones that everything else is measured with. What they read is changed: a
full page gets other codes before a later page sees it, and rows are replaced by what their codes stand for before they
are stored, so that a query sees its own page coded as well.
"""

import numpy as np

from cachequant.decoder.model import Model
from cachequant.kernels.append import append
from cachequant.kernels.codebooks import CODED
from cachequant.kernels.coded import side_bytes
from cachequant.kernels.encode import numbers_of
from cachequant.kv import codec
from cachequant.kv.coding import Coding
from cachequant.kv.decode import decode
from cachequant.kv.formats import PAGE
from cachequant.kv.session import Session
from cachequant.study.kv_vectors import SIDES, into


class RecodedModel(Model):
    """A model over pages that are coded otherwise; its sessions can only be extended.

    Parameters
    ----------
    model : whose weights are taken.
    pages : format and basis.
    search : whether scales are searched; else they are root mean squares.
    own : whether a query sees exact rows of its own page.
    """

    def __init__(self, model: Model, pages: Coding, search: bool = True, own: bool = True):
        super().__init__(model._asset, model._decoder, pages)
        self.search, self.own = search, own

    def session(self) -> "RecodedSession":
        """A new, empty session."""
        return RecodedSession(self)


class RecodedSession(Session):
    """Runs page by page, so that each page has its codes before the first query that reads them."""

    def __init__(self, model: RecodedModel):
        super().__init__(model._decoder.watched(self._see), model.pool, model)
        c = model.config
        self._rows = np.zeros((c.layers, 2, PAGE, c.kv_heads, c.head_dim), np.float32)  # of the page being filled
        self._drafts = self._draft, self._codes = model.pool.acquire(), model.pool.acquire(coded=True)

    def close(self) -> None:
        """Give the pages back."""
        for page in self._drafts:
            self._pool.release(page)
        self._drafts = ()
        super().close()

    def _run(self, ids: np.ndarray) -> np.ndarray:
        parts = []
        while len(ids):
            now = PAGE - self._stored % PAGE
            parts.append(super()._run(ids[:now]))
            ids = ids[now:]
            if self._pool.is_coded(self.pages[-1]):
                self._pool.write(self.pages[-1], self._pool.read(self._codes))
        return np.concatenate(parts)

    def _see(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        index, first = divmod(self._stored, PAGE)
        rows = slice(first, first + len(k))
        self._rows[layer, :, rows] = k, v
        self._code(layer)
        if not self.model.own and not self._pool.exact(index):
            read = np.empty((2, k.shape[1], PAGE, k.shape[2]), np.float32)
            decode(self._address(self._codes), self._pool.coding, layer, *read)
            k[:], v[:] = read.swapaxes(1, 2)[:, rows]

    def _code(self, layer: int) -> None:
        """Codes of the rows of a layer, in the page that they are drafted in."""
        numbers = self._pool.coding.numbers
        append(*self._rows[layer], self._address(self._draft), layer, 0, self._address(self._codes), numbers)
        if self.model.search:
            return
        *sides, at = numbers_of.py_func(numbers, layer)
        _, _, kv_heads, d = self._rows[layer].shape
        sizes = [side_bytes.py_func(bits, d) for bits in sides]
        content = self._pool.read(self._codes)
        page = content[at:][: kv_heads * sum(sizes)].reshape(kv_heads, -1)
        for bits, side, part in zip(sides, SIDES, np.split(page, sizes[:1], axis=1), strict=True):
            if bits < CODED:
                self._without_search(layer, side, bits, part)
        self._pool.write(self._codes, content)

    def _without_search(self, layer: int, side: str, bits: int, out: np.ndarray) -> None:
        """Codes of one side of a layer to (kv_heads, bytes of a side), each with the root mean square for a scale."""
        basis, at = self._pool.coding.basis, SIDES.index(side)
        fed = None if basis.feedback is None else basis.feedback[layer, :, at]
        y = into(basis, layer, side, self._rows[layer, at])
        codes, scales = codec.encode(y, bits, fed, search=False)  # (32, kv_heads, d), (32, kv_heads)
        for head, target in enumerate(out):
            packed = codec.pack(codes[:, head].T if side == "keys" else codes[:, head], bits)
            halves = scales[:, head].copy().view(np.uint16)[1::2]  # bfloat16: the upper ones
            target[: packed.size], target[-2 * PAGE :] = packed, halves.copy().view(np.uint8)

    def _address(self, page: int) -> np.ndarray:
        return np.array([self._pool.address(page)])
