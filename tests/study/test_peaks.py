"""Multiplying registers: the loop does what it counts, with the instructions of the kernels."""

import numpy as np
import pytest
from llvmlite import binding

from cachequant.kernels import native, simd
from cachequant.study import peaks

TARGETS = {
    "avx512-vnni": ("x86_64-unknown-linux-gnu", "icelake-server", "vpdpbusd", "vfmadd"),
    "avx2": ("x86_64-unknown-linux-gnu", "haswell", "vpmaddwd", "vfmadd"),
    "neon-dot": ("aarch64-unknown-linux-gnu", "neoverse-n1", "sdot", "fmla"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_every_chain_multiplies_in_every_turn(name):
    triple, cpu, codes, floats = TARGETS[name]
    machine = native.target_machine(triple, cpu)
    for kind, instruction in (("int8", codes), ("fp32", floats)):
        text = machine.emit_assembly(native.optimize(peaks.loop(simd.SETS[name], kind, triple), machine))
        assert text.count(f"\t{instruction}") == peaks.CHAINS


@pytest.mark.parametrize("kernel_set", simd.available(), ids=lambda s: s.name)
def test_sums_grow_by_the_products_that_are_counted(kernel_set):
    """Of codes: operands of ones, so that one turn adds the values of a sum's own group to it."""
    assert peaks.operations(kernel_set, "fp32") == 2 * peaks.CHAINS * kernel_set.lanes
    assert peaks.operations(kernel_set, "int8") == kernel_set.group * peaks.operations(kernel_set, "fp32")
    ones = np.int8(1) if kernel_set.group == 4 else np.int16(1)
    fixed = np.full(4 * kernel_set.lanes // ones.nbytes, ones).view(np.int32)
    memory = np.ascontiguousarray(np.concatenate([np.tile(fixed, peaks.CHAINS), fixed]))
    peaks._compiled(kernel_set, "int8")[1](1, memory.ctypes.data)
    assert (memory[: -kernel_set.lanes] - fixed[0] == kernel_set.group).all()


def test_work_counts_all_threads(monkeypatch):
    monkeypatch.setattr(peaks, "SECONDS", 0.01)
    work = peaks.PeakWork(2)
    assert work.facts()["kernel_set"] in simd.SETS
    assert all(1e-3 < work.multiply(kind)["gops"] < 1e6 for kind in peaks.KINDS)


def test_the_loop_is_verified_ir():
    triple = binding.get_process_triple()
    for kind in peaks.KINDS:
        binding.parse_assembly(str(peaks.loop(simd.SETS["portable"].emulated, kind, triple))).verify()
