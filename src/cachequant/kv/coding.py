"""A page format on one model: the numbers that the kernels take, and what they point to."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cachequant.errors import InputError
from cachequant.kernels.encode import BASIS, FEEDBACK, HEAD_STRIDE, LAYER_STRIDE, OFFSET, PER_LAYER, ROUNDED
from cachequant.kv import formats
from cachequant.kv.basis import Basis, plain
from cachequant.kv.formats import PageFormat


@dataclass(frozen=True, eq=False)
class Coding:
    """Format and basis for a model's shape; made by `coding`.

    numbers : what `kernels.encode` describes, empty for float32 pages.
    sizes : (S,) int64 bytes of the sides of a page of codes, in order; empty for float32 pages.
    """

    format: PageFormat
    basis: Basis | None
    numbers: np.ndarray
    sizes: np.ndarray

    @cached_property
    def fingerprint(self) -> str:
        """Names format and basis; hashed once, for it is asked for with every request to a cache."""
        basis = "" if self.basis is None else self.basis.sha256
        return hashlib.sha256(f"{self.format.name}\n{basis}".encode()).hexdigest()

    @property
    def coded_bytes(self) -> int:
        """Bytes of a page of codes, all layers; 0 for float32 pages."""
        return int(self.sizes.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of the basis."""
        return 0 if self.basis is None else self.basis.nbytes


def coding(format: str | PageFormat, layers: int, kv_heads: int, head_dim: int, basis: Basis | None = None) -> Coding:
    """Make a format ready for pages of a model.

    Raises
    ------
    InputError : an unknown or unmeasured format, a layer or a head size that does not fit, a basis of another shape.
    """
    format = formats.get(format)
    if format.name == formats.MIXED:
        raise InputError("page format 'mixed' is measured on a model: load one with it, or name the bits of each layer")
    format.check(layers, head_dim)
    if not format.paged:
        return Coding(format, None, *np.empty((2, 0), np.int64))
    if format.compressed:
        basis = basis or plain(layers, kv_heads, head_dim)
        expected = (layers, kv_heads, 2, 1 + 2 * head_dim, head_dim)
        if basis.array.shape != expected or basis.array.dtype != np.float32:
            raise InputError(f"a basis of shape {basis.array.shape} does not fit a model that needs {expected}")
        triangles = (layers, kv_heads, 2, head_dim * (head_dim - 1) // 2)
        if basis.feedback is not None and basis.feedback.shape != triangles:
            raise InputError(f"feedback of shape {basis.feedback.shape} does not fit a model that needs {triangles}")
    else:
        basis = None
    sizes = np.array(format.side_sizes(layers, kv_heads, head_dim))
    numbers = np.zeros(PER_LAYER + 3 * layers, np.int64)
    if basis is not None:
        strides = basis.array.strides
        numbers[[BASIS, LAYER_STRIDE, HEAD_STRIDE]] = basis.array.ctypes.data, strides[0], strides[1]
        if basis.feedback is not None:
            numbers[FEEDBACK] = basis.feedback.ctypes.data
    numbers[ROUNDED] = not format.compressed
    of_layers = numbers[PER_LAYER:].reshape(layers, 3)
    of_layers[:, :OFFSET] = format.layers(layers)
    of_layers[1:, OFFSET] = sizes.reshape(layers, -1).sum(1).cumsum()[:-1]
    return Coding(format, basis, numbers, sizes)
