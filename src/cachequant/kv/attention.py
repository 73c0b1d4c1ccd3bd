"""Attention over compressed keys and values without a model."""

import numpy as np

from cachequant.errors import InputError
from cachequant.kernels import append, attention
from cachequant.kv.basis import Basis
from cachequant.kv.coding import coding
from cachequant.kv.formats import PageFormat
from cachequant.kv.pages import PagePool
from cachequant.kv.table import PageTable

LARGEST = 1e18  # magnitude of a key or value: its square still has room in float32


class Attention:
    """One layer of causal attention over a page format.

    Parameters
    ----------
    heads, kv_heads : of queries, and of keys and values; the first is a multiple of the second.
    head_dim : size of a head; a multiple of 16 for a coded format.
    kv : page format, such as ``fp32``, ``int8``, ``k4v3``.
    basis : of a coded format; None rotates only.

    Raises
    ------
    InputError : sizes or a format that do not fit.

    Examples
    --------
    >>> layer = Attention(heads=4, kv_heads=4, head_dim=64, kv="k4v4")
    >>> k = v = q = np.ones((40, 4, 64), np.float32)
    >>> layer.append(k, v)
    >>> layer.attend(q).shape
    (40, 4, 64)
    """

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, kv: str | PageFormat = "fp32", basis: Basis | None = None
    ):
        if kv_heads < 1 or heads < kv_heads or heads % kv_heads:
            raise InputError(f"{heads} query heads cannot share {kv_heads} key heads: give a multiple of at least one")
        self._coding = coding(kv, 1, kv_heads, head_dim, basis)
        self._table = PageTable(PagePool(1, kv_heads, head_dim, self._coding))
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.position = 0
        self._newest = self._table.addresses()
        self._start = 0

    @property
    def kv(self) -> PageFormat:
        """The page format in effect."""
        return self._coding.format

    def append(self, k: np.ndarray, v: np.ndarray) -> None:
        """Store the keys and values of the next tokens, (T, kv_heads, head_dim) float32, finite and at most 1e18."""
        k, v = (self._checked(x, self.kv_heads, name) for x, name in ((k, "keys"), (v, "values")))
        if k.shape != v.shape:
            raise InputError(f"keys of shape {k.shape} and values of shape {v.shape} do not go together")
        self._table.settle()
        self._newest = self._table.reserve(self.position, self.position + len(k))
        pages = self._newest
        append.append(k, v, pages.exact, 0, self.position, pages.coded, pages.coding)
        self._start, self.position = self.position, self.position + len(k)

    def attend(self, q: np.ndarray) -> np.ndarray:
        """Attention of the newest tokens' queries.

        Parameters
        ----------
        q : (T, heads, head_dim) float32 queries of the last T tokens, which one `append` has stored.

        Returns
        -------
        (T, heads, head_dim) float32.
        """
        q = self._checked(q, self.heads, "queries")
        if len(q) > self.position - self._start:
            raise InputError(f"{len(q)} queries, but the last append stored {self.position - self._start} tokens")
        out, pages = np.empty_like(q), self._newest
        start, scale = self.position - len(q), self.head_dim**-0.5
        attention.attend(q, pages.exact, 0, start, self.kv_heads, scale, out, pages.coded, pages.coding)
        return out

    def bytes(self) -> int:
        """Bytes of the pages held and of the basis."""
        return self._table.nbytes + self._coding.nbytes

    def _checked(self, x: np.ndarray, heads: int, name: str) -> np.ndarray:
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim != 3 or x.shape[1:] != (heads, self.head_dim) or not len(x):
            raise InputError(f"{name} of shape {x.shape} do not fit (T >= 1, {heads}, {self.head_dim})")
        if not np.abs(x).max() <= LARGEST:
            raise InputError(f"{name} have to be finite and at most {LARGEST:g}, got {x.flat[np.abs(x).argmax()]!r}")
        return x
