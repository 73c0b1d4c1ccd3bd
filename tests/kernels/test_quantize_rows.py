"""Quantization inside the kernels: the codes and steps of `quantize.quantize`, bit for bit."""

import numpy as np
import pytest

from cachequant import schemes
from cachequant.kernels import native, simd
from cachequant.kernels.quantize_rows import form_of, quantize_tile
from cachequant.quantize import TINY, quantize
from cachequant.schemes import EXACT, Block, Quantizer, Tensor

SETS = [s for s in simd.SETS.values() if s.runs_here]


def tile_codes(x, quantizer, kernel_set):
    """Codes (rows, k) and steps (rows, blocks) as the kernel makes them, unpacked again."""
    rows, k = x.shape
    block, groups = quantizer.block(k), -(-k // kernel_set.group)
    records = -(-k // block)
    units, steps = np.empty(groups * rows, np.int32), np.empty(records * rows * (1 + kernel_set.unsigned), np.float32)
    shared = np.abs(x).max() if quantizer.granularity == Tensor() else np.float32(-1)
    form = form_of(quantizer, k, block)
    quantize_tile(native.table(kernel_set), form, x.ctypes.data, rows, k, shared, units, 0, steps, 0)
    narrow = units.view({2: np.int16, 4: np.int8}[kernel_set.group]).reshape(groups, rows, kernel_set.group)
    codes = narrow.transpose(1, 0, 2).reshape(rows, -1)
    assert not codes[:, k:].any()
    return codes[:, :k], steps.reshape(records, -1, rows)[:, 0].T


def check(x, quantizer, kernel_set):
    codes, steps = tile_codes(x, quantizer, kernel_set)
    truth = quantize(x, quantizer)
    np.testing.assert_array_equal(codes, truth.codes)
    np.testing.assert_array_equal(steps, truth.steps())


QUANTIZERS = {name: scheme.activation for name, scheme in schemes.grid().items()}
QUANTIZERS |= {
    q.name: q for bits in (12, 16) for g in (schemes.Row(), Block(32)) for q in [Quantizer(g, EXACT, bits=bits)]
}
QUANTIZERS |= {f"{g.name}-fp16": Quantizer(g, EXACT, half=True) for g in (schemes.Row(), Block(32))}


def suited(quantizer):
    """Kernel sets of this machine that take such inputs."""
    return [s for s in SETS if s.wide or quantizer.bits == 8]


@pytest.mark.parametrize("name, kernel_set", [(n, s) for n, q in QUANTIZERS.items() for s in suited(q)], ids=str)
def test_codes_and_steps_equal_the_reference(name, kernel_set):
    rng = np.random.default_rng(0)
    for rows, k in ((1, 1), (1, 64), (6, 83), (3, 300)):
        check(rng.standard_normal((rows, k), np.float32), QUANTIZERS[name], kernel_set)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_special_values(name):
    quantizer, powers = QUANTIZERS[name], np.arange(-20, 14)
    tops = np.float32(2.0) ** powers
    tops = np.concatenate([tops, np.nextafter(tops, np.float32(0)), np.nextafter(tops, np.float32(np.inf))])
    x = np.zeros((6, 32 * len(tops)), np.float32)
    x[0, ::32], x[1, 5::32], x[2, 31::32] = tops, -tops, tops[::-1]  # largest magnitudes at and next to powers of two
    x[3] = np.linspace(-1, 1, x.shape[1])
    x[4, ::2], x[4, 1::2] = 127, 0.5  # ties: 0.5, 1.5, ... round to even
    x[4, 1::4] = np.arange(len(x[4, 1::4])) % 100 + 0.5
    check(x, quantizer, suited(quantizer)[0])


@pytest.mark.parametrize("name", [n for n in QUANTIZERS if "fp16" not in n])
def test_the_smallest_and_the_largest_magnitudes(name):
    quantizer = QUANTIZERS[name]
    tiny = TINY * np.float32(quantizer.largest_code)
    tops = [1e-38, 1e-45, tiny, np.nextafter(tiny, np.float32(0)), 3e-36, 1e-30, 1e30, 1.6e38, 1.8e38, 3.4e38]
    x = np.zeros((6, 32 * len(tops)), np.float32)
    for i, top in enumerate(tops):
        x[:, 32 * i : 32 * i + 32] = np.linspace(-1, 0.9, 32, dtype=np.float32) * np.float32(top)
    for row, limit in enumerate((1e-35, 1e-20, 1, 1e20)):
        x[row][np.abs(x[row]) > np.float32(limit)] = 0
    check(x, quantizer, suited(quantizer)[0])
