"""Weights in the layout that the micro-kernels read: panels of 16 outputs, k running along each panel."""

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from cachequant.kernels import simd
from cachequant.kernels.huge_pages import HugePageMemory
from cachequant.kernels.simd import WIDTH
from cachequant.quantize import Quantized
from cachequant.schemes import BITS
from cachequant.transform import Basis

FLOAT, EXPONENT, HALF = 0, 1, 2  # how steps are stored: float32, int8 e of 2^e / 127, float16
MEMORY = HugePageMemory()  # of all packed matrices


def longest(bits: int) -> int:
    """Values whose products with weights surely fit an int32 sum: 2^7 * 2^(bits - 1) * 2^(25 - bits) = 2^31."""
    return 1 << (25 - bits)


@dataclass(eq=False)
class PackedMatrix:
    """An (N, K) matrix in panels of 16 rows, the last panel padded with zeros.

    values : float32 [panel][K][16], or int8 [panel][group of k][16][group] for the kernel set's group.
    scales : [panel][block][16] steps as stored: float32, float16, or int8 exponents of powers of two; None for floats.
    block : values along K that share a step; K for one step a row.
    kind : "floats" or "codes".
    kernel_set : the set whose layout this is.
    basis : of the inputs, if the weights are for transformed ones.
    """

    n: int
    k: int
    values: np.ndarray
    scales: np.ndarray | None
    block: int
    kind: str
    kernel_set: simd.KernelSet
    basis: Basis | None = None
    address: int = field(init=False, repr=False)
    scale_address: int = field(init=False, repr=False, default=0)
    scale_kind: int = field(init=False, repr=False, default=FLOAT)
    call: tuple = field(init=False, repr=False, default=(...,))  # how `gemm.matmul` called its kernel last

    def __post_init__(self):
        self.address = self.values.ctypes.data
        if self.scales is not None:
            self.scale_address = self.scales.ctypes.data
            self.scale_kind = {"float32": FLOAT, "int8": EXPONENT, "float16": HALF}[self.scales.dtype.name]

    @property
    def nbytes(self) -> int:
        parts = (self.values, self.scales, self.basis and self.basis.factors)
        return sum(part.nbytes for part in parts if part is not None)

    def steps(self, ids: np.ndarray) -> np.ndarray:
        """(T, B) float32 steps of the rows `ids`."""
        stored = self.scales[ids // WIDTH, :, ids % WIDTH]
        if self.scale_kind == EXPONENT:
            return np.where(stored == -127, np.float32(0), np.ldexp(np.float32(1), stored) / np.float32(127))
        return stored.astype(np.float32)


def pack_fp32(w: np.ndarray, kernel_set: simd.KernelSet) -> PackedMatrix:
    """Pack a (N, K) float32 matrix."""
    n, k = w.shape
    values = _zeros((-(-n // WIDTH), k, WIDTH), np.float32)
    write_panels(values, w)
    return PackedMatrix(n, k, values, None, k, "floats", kernel_set)


def pack_codes(q: Quantized, kernel_set: simd.KernelSet, basis: Basis | None = None) -> PackedMatrix:
    """Pack quantized weights; indices of snapped scales become float32 steps, powers of two stay exponents."""
    n, k = q.codes.shape
    group, panels = kernel_set.group, -(-n // WIDTH)
    values = _zeros((panels, -(-k // group), WIDTH, group), np.int8)
    for i in range(group):
        part = q.codes[:, i::group]
        write_panels(values[:, : part.shape[1], :, i], part)
    if kernel_set.unsigned:
        values.view(np.uint8)[...] ^= 0x80
    block = q.quantizer.block(k)
    stored = _stored_steps(q)
    if block > longest(BITS):
        block, stored = longest(BITS), np.repeat(stored, -(-k // longest(BITS)), 1)
    scales = _zeros((panels, stored.shape[1], WIDTH), stored.dtype)
    if stored.dtype == np.int8:
        scales[...] = -127
    write_panels(scales, stored)
    return PackedMatrix(n, k, values, scales, block, "codes", kernel_set, basis)


def rows(w: PackedMatrix, ids: np.ndarray) -> np.ndarray:
    """Rows `ids` (T,) of the matrix as (T, K) float32, dequantized: the look-up of embeddings."""
    ids = np.asarray(ids, np.int64)
    out = np.empty((len(ids), w.k), np.float32)
    if w.kind == "floats":
        _rows(w.values.view(np.int32), ids, out.view(np.int32))
    else:
        _code_rows(w.values, w.steps(ids), w.block, w.kernel_set.unsigned, ids, out)
    return out


@njit(cache=True, nogil=True)
def _rows(values, ids, out):
    for t in range(len(ids)):
        out[t] = values[ids[t] // WIDTH, :, ids[t] % WIDTH]


@njit(cache=True, nogil=True)
def _code_rows(values, steps, block, unsigned, ids, out):
    group = values.shape[3]
    for t in range(len(ids)):
        panel, lane = ids[t] // WIDTH, ids[t] % WIDTH
        for k in range(out.shape[1]):
            code = values[panel, k // group, lane, k % group]
            if unsigned:
                code ^= -128
            out[t, k] = np.float32(code) * steps[t, k // block]


def _stored_steps(q: Quantized) -> np.ndarray:
    """(N, B) steps in one of the stored kinds."""
    shape = (len(q.codes), q.scales.shape[1])
    if q.quantizer.scale.steps == 1:
        return np.broadcast_to(np.where(q.scales == -128, np.int8(-127), q.scales), shape)
    return np.broadcast_to(q.scales, shape) if q.quantizer.scale.steps is None else q.steps()


def write_panels(packed: np.ndarray, rows_: np.ndarray) -> None:
    """Write (N, C) rows into [panel][C][16], as far as there are rows."""
    whole = len(rows_) // WIDTH
    packed[:whole] = rows_[: whole * WIDTH].reshape(whole, WIDTH, rows_.shape[1]).swapaxes(1, 2)
    if whole * WIDTH < len(rows_):
        packed[whole, :, : len(rows_) - whole * WIDTH] = rows_[whole * WIDTH :].T


def _zeros(shape: tuple[int, ...], dtype) -> np.ndarray:
    room = MEMORY.room(shape, dtype)
    room[...] = 0
    return room
