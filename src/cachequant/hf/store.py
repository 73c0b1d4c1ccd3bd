"""Pages of a batch of sequences with left padding: columns on the outside, positions from each row's first real token
on the inside.

A pass appends the same number of columns to every layer in turn. Only the layer that is being computed needs the exact
rows of a long chunk, so pages that will be left with codes alone have them in scratch memory of one layer.
"""

from collections.abc import Sequence

import numpy as np

from cachequant.errors import InputError
from cachequant.hf.rows import Row
from cachequant.kernels import append, attention
from cachequant.kernels.huge_pages import aligned
from cachequant.kernels.slab import ALIGN
from cachequant.kv.coding import Coding
from cachequant.kv.decode import decode
from cachequant.kv.formats import PAGE, exact_bytes
from cachequant.kv.pages import PagePool

SLAB = 1 << 19  # bytes: a cache of one sequence has few pages


class Store:
    """Keys and values of a batch.

    Parameters
    ----------
    layers, kv_heads, head_dim : the model's shape.
    coding : how pages are coded.
    pads : columns of padding before each row's first token.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, coding: Coding, pads: Sequence[int]):
        self.shape, self.coding, self.pads = (layers, kv_heads, head_dim), coding, list(pads)
        self._pool = PagePool(*self.shape, coding, slab_bytes=SLAB)
        self._rows = [Row(self._pool) for _ in self.pads]
        self.lengths = [0] * layers  # columns
        self._sides = coding.format.layers(layers)
        self._end, self._scratch = 0, []

    @property
    def nbytes(self) -> int:
        """Bytes allocated for pages, their rows that are still empty included, and of the addresses."""
        return self._pool.nbytes + sum(row.exact.nbytes + row.coded.nbytes for row in self._rows)

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Store the next columns of one layer, (B, T, kv_heads, d) float32; those of padding are left out.

        Raises
        ------
        InputError : another batch, or a layer that is ahead of others because a pass was interrupted.
        """
        batch, tokens = k.shape[:2]
        if batch != len(self._rows):
            raise InputError(f"a batch of {batch} rows does not fit a cache of {len(self._rows)}")
        start = self.lengths[layer]
        end = start + tokens
        if start == max(self.lengths):
            if start != min(self.lengths):
                raise InputError(
                    f"layer {layer} holds {start} tokens and another one {min(self.lengths)}: a pass was interrupted; "
                    "crop() to the shorter length or reset() the cache"
                )
            for b, row in enumerate(self._rows):
                row.reserve(*self._positions(b, start, end))
            self._end = end
        elif end != self._end:
            raise InputError(f"layer {layer} got {tokens} tokens in a pass of {self._end - start}")
        self._scratch = []
        for b in range(batch):
            first, last = self._positions(b, start, end)
            exact = self._exact(b, layer, first, last)
            self._scratch.append(exact)
            if last > first:
                new, row = slice(tokens - (last - first), None), self._rows[b]
                append.append(k[b, new], v[b, new], exact[0], layer, first, row.coded, self.coding.numbers)
        self.lengths[layer] = end

    def _positions(self, b: int, start: int, end: int) -> tuple[int, int]:
        """Positions of a row that columns start to end hold."""
        return max(start - self.pads[b], 0), max(end - self.pads[b], 0)

    def _exact(self, b: int, layer: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Addresses of exact pages of a pass, and the scratch that some of them point to."""
        row = self._rows[b]
        missing = [i for i in range(first // PAGE, -(-last // PAGE)) if not row.exact[i]]
        if not missing:
            return row.exact, None
        size = exact_bytes(1, *self.shape[1:])
        scratch, addresses = aligned(len(missing) * size, ALIGN), row.exact.copy()
        # the kernel adds the offset of the layer to the address of a page
        addresses[missing] = scratch.ctypes.data + size * (np.arange(len(missing)) - layer)
        return addresses, scratch

    def attend(self, layer: int, q: np.ndarray, scale: float, out: np.ndarray) -> None:
        """Attention of the columns that `append` has just stored in this layer.

        Parameters
        ----------
        q : (B, T, heads, d) float32.
        scale : of the scores.
        out : (B, T, heads, d) float32, written but for columns of padding.
        """
        end, tokens = self.lengths[layer], q.shape[1]
        for b, (row, (exact, _)) in enumerate(zip(self._rows, self._scratch, strict=True)):
            first, last = self._positions(b, end - tokens, end)
            if last > first:
                new = slice(tokens - (last - first), None)
                attention.attend(
                    q[b, new], exact, layer, first, self.shape[1], scale, out[b, new], row.coded, self.coding.numbers
                )

    def forget_scratch(self) -> None:
        """Give back what only the layer that was appended last needed."""
        self._scratch = []

    def read(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of all columns: exact those that `append` has just stored, as a later query sees the others.

        Parameters
        ----------
        layer : which one.
        k, v : (B, T, kv_heads, d) float32 that `append` got.

        Returns
        -------
        Two (B, kv_heads, columns, d) float32 arrays, zero in padding.
        """
        (_, kv_heads, d), columns = self.shape, self.lengths[layer]
        old, rounded = columns - k.shape[1], not self.coding.format.compressed
        out = np.empty((2, len(self._rows), kv_heads, columns, d), np.float32)
        for side, (new, bits) in enumerate(zip((k, v), self._sides[layer], strict=True)):
            out[side, :, :, old:] = (new.astype(np.float16) if rounded and bits == 16 else new).swapaxes(1, 2)
        for b, pad in enumerate(self.pads):
            out[:, b, :, :pad] = 0
            self._read(self._rows[b], layer, out[:, b, :, min(pad, old) : old])
        return out[0], out[1]

    def _read(self, row: Row, layer: int, out: np.ndarray) -> None:
        """The first tokens of a row to out (2, kv_heads, tokens, d)."""
        tokens = out.shape[2]
        full, rest = divmod(tokens, PAGE)
        leading = min(full, self.coding.format.exact_pages) if self.coding.coded_bytes else full
        coded = out[:, :, leading * PAGE : full * PAGE]
        decode(row.coded[leading:full], self.coding, layer, *coded)
        for index in [*range(leading), *([full] if rest else [])]:
            for side, x in zip(out, row.rows(index, layer), strict=True):
                target = side[:, index * PAGE : (index + 1) * PAGE]
                target[:] = x[:, : target.shape[1]]

    def crop(self, tokens: int) -> None:
        """Forget the newest columns.

        Raises
        ------
        InputError : more than there are, or a cut inside a page of which only codes are left; nothing is changed.
        """
        to = max(self.lengths) - tokens
        if not 0 <= to <= min(self.lengths):
            raise InputError(f"a crop of {tokens} tokens does not fit the {min(self.lengths)} of the cache")
        ends = [self._positions(b, 0, to)[1] for b in range(len(self._rows))]
        for row, end in zip(self._rows, ends, strict=True):
            row.check_crop(end)
        for row, end in zip(self._rows, ends, strict=True):
            row.crop(end)
        self.lengths = [to] * len(self.lengths)

    def select(self, indices: Sequence[int]) -> None:
        """Rows `indices` become the batch; pages of a row that is taken twice are shared."""
        self._rows = [self._rows[i].fork() for i in indices]
        self.pads = [self.pads[i] for i in indices]
        self._scratch = []

    def fork(self) -> "Store":
        """Another store with the same pages."""
        other = Store.__new__(Store)
        other.__dict__ |= self.__dict__ | {
            "_rows": [row.fork() for row in self._rows],
            "pads": list(self.pads),
            "lengths": list(self.lengths),
            "_scratch": [],
        }
        return other
