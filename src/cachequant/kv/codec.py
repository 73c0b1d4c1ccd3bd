"""The code of a page's vectors in NumPy: what `kernels.encode` and `kernels.coded` do, to be read and tested against.

A vector is rotated by random signs and a Walsh-Hadamard matrix, which makes its values look Gaussian whatever they were
(QuaRot, Ashkboos et al. 2024), divided by a scale and rounded to the levels of a Lloyd-Max quantizer of the Gaussian.
The scale is searched: of several multiples of the root mean square the one whose codes, with the least-squares scale
for them, leave the smallest error.

Where errors in some directions cost more than in others, the values of a vector are rounded one after another and each
error is fed to those that follow, so that what is left points where it costs least (as GPTQ does for weights, Frantar
et al. 2023; Babai's nearest plane). The metric is in the factors that errors are fed with: `kv.basis`.
"""

from collections.abc import Callable

import numpy as np

from cachequant.errors import InputError
from cachequant.kernels.codebooks import CODED, FACTORS, LEVELS, edges, magnitudes
from cachequant.kernels.coded import per_word

SEED = 20240229  # of the signs
GRANULE = 16  # head sizes are multiples of it: codes fill whole words


def check_head_dim(d: int) -> None:
    """Raise InputError for a head size that the code cannot take."""
    if d < GRANULE or d % GRANULE:
        raise InputError(f"head size {d} cannot be coded: it has to be a multiple of {GRANULE}")


def rotation(d: int, seed: int = SEED) -> np.ndarray:
    """(d, d) float64 orthonormal: random signs, then Walsh-Hadamard blocks of powers of two that add up to d.

    64 is one block, 80 is 64 + 16, 96 is 64 + 32: nothing is padded, so no bit is spent on zeros.
    """
    out, at = np.zeros((d, d)), 0
    for size in (2**n for n in reversed(range(d.bit_length())) if d & 2**n):
        block = np.ones((1, 1))
        while len(block) < size:
            block = np.block([[block, block], [block, -block]])
        out[at : at + size, at : at + size] = block / np.sqrt(size)
        at += size
    signs = np.random.default_rng(seed).integers(0, 2, d) * 2.0 - 1.0
    return signs[:, None] * out


def bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16 (to nearest, ties to even), as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def encode(
    y: np.ndarray, bits: int, feedback: np.ndarray | None = None, search: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of vectors that are rotated already.

    Parameters
    ----------
    y : (..., d) float32.
    bits : 2, 3, 4, or 8.
    feedback : (..., d (d - 1) / 2) float32 triangles of `kv.basis.Basis`, one for all vectors or of leading axes that
        fit theirs; None rounds each value on its own.
    search : whether the scale of 2 to 4 bits is searched; without, which no kernel does, it is the root mean square.

    Returns
    -------
    codes : (..., d) int32; a magnitude with its sign as the bit above it, for 8 bits the signed number.
    scales : (...,) float32, each a bfloat16.
    """
    y = np.asarray(y, np.float32)
    d, top = y.shape[-1], np.abs(y).max(-1)
    factors = None
    if feedback is not None:
        factors = np.zeros((*feedback.shape[:-1], d, d), np.float32)
        factors[..., *np.tril_indices(d, -1)] = feedback
    if bits == CODED:
        scales = bfloat16(top / np.float32(127))
        t = np.divide(y, scales[..., None], out=np.zeros_like(y), where=scales[..., None] > 0)
        return _fed(t, factors, lambda x: np.rint(x).clip(-127, 127))[1].astype(np.int32), scales
    levels, bounds = magnitudes(bits), edges(bits)

    def nearest(x):
        level = levels[(np.abs(x)[..., None] > bounds).sum(-1)]
        return np.where(x < 0, -level, level)

    u = np.divide(y, top[..., None], out=np.zeros_like(y), where=top[..., None] > 0)
    rms = np.sqrt(_sum(u * u) / np.float32(d))
    whole = _fed(u, factors, np.zeros_like)[0]
    best, scales = np.full(top.shape, -1, np.float32), np.zeros(top.shape, np.float32)
    found = np.full(y.shape, levels[0])
    for factor in np.array(FACTORS if search else (1,), np.float32):
        inverse = np.divide(np.float32(1), rms * factor, out=np.zeros_like(rms), where=rms > 0)[..., None]
        x, b = _fed(u * inverse, factors, nearest)
        got = whole * inverse - (x - b)
        num, den = _sum(whole * got), _sum(got * got)
        gain = num * num / den
        better = gain > best
        best = np.where(better, gain, best)
        scales = np.where(better, num / den * top, scales)
        found = np.where(better[..., None], b, found)
    if not search:
        scales = rms * top
    codes = np.searchsorted(levels, np.abs(found)) + np.where(found < 0, len(levels), 0)
    return codes.astype(np.int32), bfloat16(scales)


def _fed(y: np.ndarray, factors: np.ndarray | None, code: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Values in order, each with the errors of those before it fed to it, and what `code` makes of them."""
    if factors is None:
        return y, code(y)
    fed, coded = y.copy(), np.empty_like(y)
    for i in range(y.shape[-1]):
        coded[..., i] = code(fed[..., i])
        fed[..., i + 1 :] += factors[..., i + 1 :, i] * (y[..., i] - coded[..., i])[..., None]
    return fed, coded


def _sum(x: np.ndarray) -> np.ndarray:
    """Sum over the last axis in float32, in order, as the kernel adds."""
    return np.add.accumulate(x, axis=-1, dtype=np.float32)[..., -1]


def decode(codes: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """(..., d) float32 that the codes stand for, still rotated."""
    if bits == CODED:
        return codes.astype(np.float32) * scales[..., None]
    half = len(LEVELS[bits])
    levels = magnitudes(bits)[codes % half] * np.where(codes >= half, np.float32(-1), np.float32(1))
    return levels * scales[..., None]


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes (k, n) in the order of `kernels.coded`: (bytes,) uint8, without scales."""
    k, n = codes.shape
    count, width = per_word(bits), 2 if bits < 4 else bits
    codes = codes.astype(np.uint32)
    shifts = (np.arange(k) % count * width).astype(np.uint32)[:, None]
    words = ((codes & np.uint32(2**width - 1)) << shifts).reshape(-1, count, n).sum(1, dtype=np.uint32)
    if bits != 3:
        return words.reshape(-1).view(np.uint8)
    planes = np.zeros((-(-k // 32), 32, n), np.uint32)
    planes.reshape(-1, n)[:k] = (codes >> np.uint32(2)) << (np.arange(k) % 32).astype(np.uint32)[:, None]
    return np.concatenate([words.reshape(-1), planes.sum(1, dtype=np.uint32).reshape(-1)]).view(np.uint8)
