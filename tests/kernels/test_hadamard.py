"""The input transform inside the kernels: the bits of the reference, alone and in products."""

import numpy as np
import pytest

from cachequant import schemes
from cachequant.kernels import gemm, native, pack, rotate, simd
from cachequant.quantize import quantize
from cachequant.schemes import EXACT, Block, Quantizer
from cachequant.transform import Basis, signs, walsh_hadamard
from naive import matmul_codes

SETS = [s for s in simd.SETS.values() if s.runs_here] + [s.emulated for s in simd.SETS.values() if not s.runs_here]
SIZES = [
    (60, 4),
    (62, 2),
    (8, 8),
    (40, 8),
    (48, 16),
    (96, 32),
    (576, 64),
    (640, 128),
    (768, 256),
    (1536, 512),
    (4096, 4096),
    (83, 1),
]


def size_id(size):
    return "in".join(map(str, size[::-1]))


def basis_of(k, block):
    factors = np.random.default_rng(k).uniform(0.5, 2, k).astype(np.float32) * signs(k, 0)
    return Basis(factors, block)


@pytest.mark.parametrize("kernel_set", SETS, ids=lambda s: s.name)
@pytest.mark.parametrize("size", SIZES, ids=size_id)
def test_rows_equal_the_reference(size, kernel_set, monkeypatch):
    basis = basis_of(*size)
    monkeypatch.setattr(rotate.selfcheck, "active", lambda: kernel_set)
    x = np.random.default_rng(1).standard_normal((3, size[0])).astype(np.float32)
    got = rotate.rotate(x, basis.factors, basis.block)
    np.testing.assert_array_equal(got, walsh_hadamard(x * basis.factors, basis.block))


@pytest.mark.parametrize("kernel_set", SETS, ids=lambda s: s.name)
@pytest.mark.parametrize("activation", [schemes.INT8, Quantizer(Block(64), EXACT)], ids=lambda q: q.name)
@pytest.mark.parametrize("size", [(83, 1), (576, 64), (1536, 512)], ids=size_id)
def test_products_equal_the_naive_sequence(size, activation, kernel_set):
    basis, rng = basis_of(*size), np.random.default_rng(2)
    for m, n in ((1, 16), (13, 37)):
        x, w = (rng.standard_normal((rows, size[0])).astype(np.float32) for rows in (m, n))
        p, q = quantize(basis.inputs(x), activation), quantize(basis.weights(w), schemes.INT8)
        block = activation.block(size[0])
        w_steps = np.repeat(q.steps(), p.steps().shape[1], 1)
        truth = matmul_codes(p.codes, p.steps(), q.codes, w_steps, block)
        np.testing.assert_array_equal(gemm.matmul(x, pack.pack_codes(q, kernel_set, basis), activation), truth)


def test_bytes_count_the_factors():
    q = quantize(np.ones((16, 64), np.float32), schemes.INT8)
    kernel_set = SETS[0]
    assert pack.pack_codes(q, kernel_set, basis_of(64, 64)).nbytes == pack.pack_codes(q, kernel_set).nbytes + 4 * 64


def test_every_set_generates_it():
    assert all(native.table(s)[native.TRANSFORM] for s in SETS)
