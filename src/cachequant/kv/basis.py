"""The basis in which a page's vectors are coded: for each layer, head and side a mean and a matrix.

Keys may be shifted by a constant (softmax does not see it, once the queries' scores of the constant are added back to
the coded pages), values too (weights sum to 1). Before the rotation a matrix T balances what the vectors' spread costs:
it makes tr(T' A T) tr(T^-1 B T^-T) smallest, where A is the covariance of the vectors and B what their error is
multiplied with: the second moment of the queries for keys, the Gram matrix of the output projection for values. With
errors that are alike in every direction after the rotation that product is the error of the scores and of the output:

    T T' = A^-1/2 (A^1/2 B A^1/2)^1/2 A^-1/2
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cachequant.kv.codec import SEED, rotation

PLAIN = "rotation"  # tag of the basis that needs no calibration
FLOOR = 1e-6  # of the largest eigenvalue: directions in which nothing varies do not blow up


@dataclass(frozen=True, eq=False)
class Basis:
    """Means and matrices, as the kernels read them.

    array : (layers, kv_heads, 2, 1 + 2 d, d) float32, layers and heads may be of stride 0: for keys and for values the
        mean, the matrix into the coded basis, and the one out of it (for keys transposed: it turns queries).
    tag : names what the basis was fitted on; it goes into fingerprints.
    """

    array: np.ndarray
    tag: str = PLAIN

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        shape, strides = self.array.shape, self.array.strides
        count = np.prod([n for n, s in zip(shape, strides, strict=True) if s])
        return int(count) * self.array.itemsize

    def __post_init__(self):
        self.array.flags.writeable = False

    @cached_property
    def sha256(self) -> str:
        """Of the numbers and the tag."""
        return hashlib.sha256(self.tag.encode() + np.ascontiguousarray(self.array).tobytes()).hexdigest()


def plain(layers: int, kv_heads: int, d: int, seed: int = SEED) -> Basis:
    """Signs and Walsh-Hadamard alone, the same for every layer, head and side."""
    turn = rotation(d, seed)
    one = _entry(np.zeros(d), turn, turn)  # orthonormal: the inverse's transpose is the matrix itself
    other = _entry(np.zeros(d), turn, turn.T)
    pair = np.stack([one, other]).astype(np.float32)
    return Basis(np.broadcast_to(pair, (layers, kv_heads, *pair.shape)))


def _entry(mean: np.ndarray, into: np.ndarray, out: np.ndarray) -> np.ndarray:
    return np.concatenate([mean[None], into, out])


def power(a: np.ndarray, p: float) -> np.ndarray:
    """a^p of symmetric positive matrices (..., d, d), small eigenvalues lifted."""
    w, u = np.linalg.eigh(a)
    w = np.maximum(w, w.max(-1, keepdims=True) * FLOOR) + 1e-30
    return (u * (w**p)[..., None, :]) @ np.swapaxes(u, -1, -2)


def balance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """T of the module's formula, symmetric, for covariances a and weights b (..., d, d)."""
    half, inverse = power(a, 0.5), power(a, -0.5)
    return power(inverse @ power(half @ b @ half, 0.5) @ inverse, 0.5)


def fitted(
    moments: "Moments", gram: np.ndarray, tag: str, *, rotate: bool = True, centre: bool = True, balanced: bool = True
) -> Basis:
    """The basis for what was seen of a model.

    Parameters
    ----------
    moments : of its keys, values and queries.
    gram : (layers, kv_heads, d, d) Gram matrices of the output projection's inputs.
    tag : name of the text.
    rotate, centre, balanced : parts that can be left out, for ablation.
    """
    layers, heads, d = moments.mean.shape[:3][0], moments.mean.shape[1], moments.mean.shape[-1]
    turn = rotation(d) if rotate else np.eye(d)
    array = np.empty((layers, heads, 2, 1 + 2 * d, d), np.float32)
    for side, b in ((0, moments.queries), (1, gram)):
        mean = moments.mean[:, :, side] if centre else np.zeros((layers, heads, d))
        seen = moments.mean[:, :, side]
        a = moments.second[:, :, side] - seen[..., :, None] * seen[..., None, :]
        t = balance(a, b) if balanced else np.broadcast_to(np.eye(d), a.shape)
        into = t @ turn
        out = turn.T @ np.linalg.inv(t)
        array[:, :, side, 0] = mean
        array[:, :, side, 1 : 1 + d] = into
        array[:, :, side, 1 + d :] = np.swapaxes(out, -1, -2) if side == 0 else out
    return Basis(array, tag)


@dataclass(eq=False)
class Moments:
    """Means and second moments of keys and values (layers, kv_heads, 2, ...), second moments of queries."""

    mean: np.ndarray  # (layers, kv_heads, 2, d)
    second: np.ndarray  # (layers, kv_heads, 2, d, d)
    queries: np.ndarray  # (layers, kv_heads, d, d)
