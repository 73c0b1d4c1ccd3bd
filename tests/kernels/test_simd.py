"""Kernel sets of other CPUs: compiled for one that has them, and their arithmetic run in plain operations."""

import re

import numpy as np
import pytest
from llvmlite import ir

from cachequant import schemes
from cachequant.kernels import gemm, micro, native, pack, products, simd
from cachequant.quantize import quantize
from naive import matmul_codes, matmul_weights

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
TARGETS = {
    "avx512-vnni": (X86, "icelake-server", r"vpdpbusd.*%zmm"),
    "avx-vnni": (X86, "alderlake", r"vpdpbusd.*%ymm"),
    "avx512": (X86, "skylake-avx512", r"vpmaddwd.*%zmm"),
    "avx2": (X86, "znver3", r"vpmaddwd.*%ymm"),
    "neon-dot": (ARM, "neoverse-n1", r"sdot\s+v\d+\.4s"),
    "portable": (X86, "x86-64", r"pmaddwd|pmuludq|pmullw"),
}
FUSED = {X86: r"vfmadd\d+ps.*%[yz]mm", ARM: r"fmla\s+v\d+\.4s"}


def test_every_set_has_a_target():
    assert TARGETS.keys() == simd.SETS.keys()


def assembly_of(kernel_set, product, triple, cpu):
    """The largest tile of a set, compiled for a CPU."""
    module, machine = ir.Module(), native.target_machine(triple, cpu)
    module.triple = triple
    micro.chain(module, product(kernel_set), kernel_set.rows).linkage = "external"
    return machine.emit_assembly(native.optimize(module, machine))


@pytest.mark.parametrize("name", TARGETS)
def test_inner_loops_are_the_instruction_without_spills(name):
    triple, cpu, instruction = TARGETS[name]
    kernel_set = simd.SETS[name]
    for product, pattern in ((products.codes, instruction), (products.floats, FUSED[triple])):
        assembly = assembly_of(kernel_set, product, triple, cpu)
        loop = max(re.split(r"\n\.LBB\S+:", assembly), key=lambda part: len(re.findall(pattern, part)))
        if name == "portable":
            assert product == products.floats or re.search(pattern, loop)
            continue
        assert len(re.findall(pattern, loop)) == 2 * kernel_set.rows * simd.WIDTH // kernel_set.lanes
        assert not re.search(r"\(%rsp\)|\[sp", loop)


@pytest.mark.parametrize("name", [n for n in TARGETS if n != "portable"])
@pytest.mark.parametrize("quantizer", [schemes.INT8, schemes.BFP8], ids=lambda q: q.name)
def test_their_arithmetic_equals_the_naive_sequence(name, quantizer):
    rng, kernel_set = np.random.default_rng(0), simd.SETS[name].emulated
    for m, n, k in ((1, 16, 64), (13, 37, 91), (25, 20, 1100)):
        x, w = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)
        p, q = quantize(x, quantizer), quantize(w, quantizer)
        truth = matmul_codes(p.codes, p.steps(), q.codes, q.steps(), quantizer.block(k))
        matrix = pack.pack_codes(q, kernel_set)
        np.testing.assert_array_equal(gemm.matmul(x, matrix, quantizer), truth)
        truth = matmul_weights(x, q.codes, q.steps(), quantizer.block(k))
        np.testing.assert_array_equal(gemm.matmul(x, matrix), truth)
        np.testing.assert_array_equal(
            pack.rows(matrix, np.arange(n)), q.codes * np.repeat(q.steps(), quantizer.block(k), 1)[:, :k]
        )


def test_products_know_their_bytes():
    for kernel_set in simd.SETS.values():
        assert products.codes(kernel_set).group_bytes == kernel_set.group
        assert simd.WIDTH % kernel_set.lanes == 0
