"""Reference quantization in NumPy: what every kernel has to reproduce bit for bit.

The largest magnitude `a` of a group gives a scale `s >= a` by the rule; with L the largest code (127 for 8 bits), a
code is rint(x * (L / s)), worth s / L. All arithmetic is float32, rounding is half to even. Groups whose largest
magnitude is below `TINY` * L become zeros with step 0. Powers 2^(k/n) stop at 2^127, the largest that float32 holds:
larger magnitudes clip to it.
"""

from dataclasses import dataclass

import numpy as np

from cachequant.errors import InputError, NumericsError
from cachequant.schemes import BITS, Quantizer, ScaleRule, Tensor

TINY = np.float32(1.2e-38)  # a little above the smallest normal float32: no step is denormal
_ZERO_INDEX = {"int8": -128, "int16": -(2**15)}  # marks a group of zeros among stored indices


def steps_in_octave(n: int) -> np.ndarray:
    """Float32 mantissas 2^(-n/n), ..., 2^(-1/n), 1 that a scale 2^(k/n) can have, ascending."""
    return np.array([2.0 ** (-j / n) for j in range(n, -1, -1)], np.float32)


@dataclass(frozen=True, eq=False)
class Quantized:
    """Codes of an (N, K) matrix with their scales.

    codes : (N, K) int8 in [-127, 127]; int16 for more than 8 bits.
    scales : (N, B) as stored, (1, 1) for one scale a tensor: float steps, or int8/int16 indices k of scales 2^(k/n).
    """

    codes: np.ndarray
    scales: np.ndarray
    quantizer: Quantizer

    @property
    def size(self) -> int:
        return self.codes.size

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def steps(self) -> np.ndarray:
        """Float32 worth of one code, (N, B)."""
        n, most = self.quantizer.scale.steps, np.float32(self.quantizer.largest_code)
        if n is None:
            steps = self.scales.astype(np.float32)
        else:
            zero = self.scales == _ZERO_INDEX[self.scales.dtype.name]
            steps = np.where(zero, np.float32(0), _scale_of_index(np.where(zero, 0, self.scales), n) / most)
        return np.broadcast_to(steps, (len(self.codes), steps.shape[1]))


def _scale_index(largest: np.ndarray, rule: ScaleRule) -> np.ndarray:
    """Smallest k with 2^(k/n) >= largest, by comparing mantissas; no logarithm is rounded."""
    mantissa, exponent = np.frexp(largest)
    return (exponent - 1) * rule.steps + np.searchsorted(steps_in_octave(rule.steps), mantissa)


def _scale_of_index(index: np.ndarray, n: int) -> np.ndarray:
    octave, j = np.divmod(index, n)
    return np.ldexp(np.float32(2) * steps_in_octave(n)[j], octave)


def _blocks(x: np.ndarray, block: int) -> np.ndarray:
    """(N, B, block) view of the rows, the last block padded with zeros."""
    n, k = x.shape
    padded = np.zeros((n, -(-k // block) * block), x.dtype)
    padded[:, :k] = x
    return padded.reshape(n, -1, block)


def quantize(x: np.ndarray, quantizer: Quantizer) -> Quantized:
    """Quantize the rows of a matrix.

    Parameters
    ----------
    x : (N, K) float32, finite.
    quantizer : granularity and scale rule; blocks run along K.

    Raises
    ------
    InputError : `x` is not a non-empty matrix, or a float16 scale would overflow.
    NumericsError : NaN or Inf in `x`.
    """
    x = np.asarray(x, np.float32)
    if x.ndim != 2 or not x.size:
        raise InputError(f"expected a non-empty matrix, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise NumericsError(
            f"{np.count_nonzero(~np.isfinite(x))} of {x.size} values are NaN or Inf; all have to be finite"
        )
    blocks = _blocks(x, quantizer.block(x.shape[1]))
    largest = np.abs(blocks).max(-1)  # (N, B)
    if quantizer.granularity == Tensor():
        largest = largest.max(keepdims=True)
    scales, scale = _stored_scales(largest, quantizer)
    most = np.float32(quantizer.largest_code)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale if quantizer.half else most / scale
    inverse = np.where(largest < TINY * most, np.float32(0), inverse)
    codes = np.clip(np.rint(blocks * inverse[..., None]), -most, most)
    codes = codes.astype(np.int8 if quantizer.bits == BITS else np.int16)
    return Quantized(np.ascontiguousarray(codes.reshape(len(x), -1)[:, : x.shape[1]]), scales, quantizer)


def _stored_scales(largest: np.ndarray, quantizer: Quantizer) -> tuple[np.ndarray, np.ndarray]:
    """Scales as stored, and the float32 divisor of the largest code (for float16 scales: the step itself)."""
    n, most = quantizer.scale.steps, np.float32(quantizer.largest_code)
    zero = largest < TINY * most
    if n is not None:
        index = np.where(
            zero, 0, np.minimum(_scale_index(np.where(zero, np.float32(1), largest), quantizer.scale), 127 * n)
        )
        stored = np.where(zero, _ZERO_INDEX[quantizer.scale_dtype], index).astype(quantizer.scale_dtype)
        return stored, _scale_of_index(index, n)
    step = np.where(zero, np.float32(0), largest / most)
    if not quantizer.half:
        return step, largest
    if step.max() > np.finfo(np.float16).max:
        raise InputError(
            f"magnitude {largest.max()} does not fit a float16 scale; at most {65504 * quantizer.largest_code}"
        )
    half = step.astype(np.float16)
    half = np.where(half.astype(np.float32) < step, np.nextafter(half, np.float16(np.inf)), half)
    return half, half.astype(np.float32)


def dequantize(q: Quantized) -> np.ndarray:
    """(N, K) float32 values of the codes."""
    blocks = _blocks(q.codes, q.quantizer.block(q.codes.shape[1])).astype(np.float32)
    return (blocks * q.steps()[..., None]).reshape(len(q.codes), -1)[:, : q.codes.shape[1]]


def concatenate(parts: list[Quantized]) -> Quantized:
    """Stack matrices of one format along N; each keeps its own scales (one a tensor becomes one a row)."""
    rows = [np.broadcast_to(p.scales, (len(p.codes), p.scales.shape[1])) for p in parts]
    return Quantized(np.concatenate([p.codes for p in parts]), np.concatenate(rows), parts[0].quantizer)
