"""The basis in which a page's vectors are coded: for each layer, head and side a mean, a matrix and a feedback.

Keys may be shifted by a constant (softmax does not see it, once the queries' scores of the constant are added back to
the coded pages), values too (weights sum to 1). What an error e costs is e' B e: B is the second moment of the queries
for keys, the Gram matrix of the output projection for values. With A the covariance of the vectors and every value of
the coded vector rounded on its own, the matrix T before the rotation that costs least balances the two (`balance`):

    T T' = A^-1/2 (A^1/2 B A^1/2)^1/2 A^-1/2          cost: the square of the mean root of the eigenvalues of A B

Feeding the error of each value to those after it (`kv.codec`) does better. The vectors are whitened, and turned by an
orthogonal P for which P' A^1/2 B A^1/2 P = r N' N with N lower triangular with a diagonal of ones: all steps of the
code cost the same r, the geometric mean of the eigenvalues of A B, which no error can be below (the geometric mean
decomposition of Jiang, Hager & Li 2005). N below its diagonal is the feedback.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from cachequant.kv.codec import SEED, rotation

PLAIN = "rotation"  # tag of the basis that needs no calibration
FLOOR = 1e-6  # of the largest eigenvalue: directions in which nothing varies do not blow up
DAMPING = 0.1, 1e-3  # of the geometric and of the arithmetic mean of the eigenvalues: bounds the feedback


@dataclass(frozen=True, eq=False)
class Basis:
    """Means and matrices, as the kernels read them.

    array : (layers, kv_heads, 2, 1 + 2 d, d) float32, layers and heads may be of stride 0: for keys and for values the
        mean, the matrix into the coded basis, and the one out of it (for keys transposed: it turns queries).
    tag : names what the basis was fitted on; it goes into fingerprints.
    feedback : (layers, kv_heads, 2, d (d - 1) / 2) float32, contiguous: for each value of a coded vector, row by row,
        what the errors of those before it are fed to it with; None where values are rounded on their own.
    """

    array: np.ndarray
    tag: str = PLAIN
    feedback: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        shape, strides = self.array.shape, self.array.strides
        count = np.prod([n for n, s in zip(shape, strides, strict=True) if s])
        return int(count) * self.array.itemsize + (0 if self.feedback is None else self.feedback.nbytes)

    @property
    def sha256(self) -> str:
        """Of the numbers and the tag."""
        feedback = b"" if self.feedback is None else self.feedback.tobytes()
        return hashlib.sha256(self.tag.encode() + np.ascontiguousarray(self.array).tobytes() + feedback).hexdigest()


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


def levelled(m: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P orthogonal and N lower triangular with a diagonal of ones, for which P' m P is a multiple of N' N.

    m : (d, d) symmetric, positive definite.
    start : (d, d) orthogonal; P is this, with coordinates turned in pairs until all steps of the elimination of m have
        the same pivot, so that P mixes as `start` does.
    """
    d, p = len(m), start.copy()
    c, pivot = p.T @ m @ p, np.exp(np.linalg.slogdet(m)[1] / d)
    for k in range(d - 1):
        for _ in range(d):
            first, others = c[k, k], np.diag(c)[k + 1 :]
            middle, radius = (first + others) / 2, np.hypot((first - others) / 2, c[k, k + 1 :])
            reach = np.abs(pivot - middle) <= radius
            if abs(first - pivot) <= 1e-12 * pivot:
                break
            if reach.any():
                q = reach.argmax()
            else:
                q = (middle - radius).argmin() if first > pivot else (middle + radius).argmax()
            aim = np.arccos(np.clip((pivot - middle[q]) / radius[q], -1, 1))
            phase = np.arctan2(c[k, k + 1 + q], (first - others[q]) / 2)
            angle = min(((phase + s * aim) / 2 for s in (-1, 1)), key=lambda a: abs(np.sin(a)))
            pair, turn = [k, k + 1 + q], np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            p[:, pair] = p[:, pair] @ turn
            c[:, pair] = c[:, pair] @ turn
            c[pair] = turn.T @ c[pair]
        c[k + 1 :, k + 1 :] -= np.outer(c[k + 1 :, k], c[k + 1 :, k]) / c[k, k]
    p = p[:, ::-1]
    n = np.linalg.cholesky((p.T @ m @ p)[::-1, ::-1]).T[::-1, ::-1]
    return p, n / np.diag(n)[:, None]


def fitted(
    moments: "Moments",
    gram: np.ndarray,
    tag: str,
    *,
    rotate: bool = True,
    centre: bool = True,
    balanced: bool = True,
    feedback: bool = True,
) -> Basis:
    """The basis for what was seen of a model.

    Parameters
    ----------
    moments : of its keys, values and queries.
    gram : (layers, kv_heads, d, d) Gram matrices of the output projection's inputs.
    tag : name of the text.
    rotate, centre, balanced, feedback : parts that can be left out, for ablation; feedback needs `balanced`.
    """
    layers, heads, d = moments.mean.shape[0], moments.mean.shape[1], moments.mean.shape[-1]
    turn = rotation(d) if rotate else np.eye(d)
    array = np.empty((layers, heads, 2, 1 + 2 * d, d), np.float32)
    fed = np.empty((layers, heads, 2, d * (d - 1) // 2), np.float32) if balanced and feedback else None
    for side, b in ((0, moments.queries), (1, gram)):
        seen = moments.mean[:, :, side]
        a = moments.second[:, :, side] - seen[..., :, None] * seen[..., None, :]
        if fed is not None:
            into, out = _whitened(a, b, turn, fed[:, :, side])
        else:
            t = balance(a, b) if balanced else np.broadcast_to(np.eye(d), a.shape)
            into, out = t @ turn, turn.T @ np.linalg.inv(t)
        array[:, :, side, 0] = seen if centre else 0
        array[:, :, side, 1 : 1 + d] = into
        array[:, :, side, 1 + d :] = np.swapaxes(out, -1, -2) if side == 0 else out
    return Basis(array, tag, fed)


def _whitened(a: np.ndarray, b: np.ndarray, turn: np.ndarray, feedback: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Matrices into and out of the basis with feedback, (layers, kv_heads, d, d); the triangles are written."""
    d = a.shape[-1]
    half, white = power(a, 0.5), power(a, -0.5)
    m = half @ b @ half
    w = np.linalg.eigvalsh(m)
    w = np.maximum(w, w.max(-1, keepdims=True) * FLOOR) + 1e-30
    damping = DAMPING[0] * np.exp(np.log(w).mean(-1)) + DAMPING[1] * w.mean(-1)
    m += damping[..., None, None] * np.eye(d)
    turns = np.empty_like(m)
    for at in np.ndindex(m.shape[:2]):
        turns[at], n = levelled(m[at], turn)
        feedback[at] = n[np.tril_indices(d, -1)]
    return white @ turns, np.swapaxes(turns, -1, -2) @ half


@dataclass(eq=False)
class Moments:
    """Means and second moments of keys and values (layers, kv_heads, 2, ...), second moments of queries."""

    mean: np.ndarray  # (layers, kv_heads, 2, d)
    second: np.ndarray  # (layers, kv_heads, 2, d, d)
    queries: np.ndarray  # (layers, kv_heads, d, d)
