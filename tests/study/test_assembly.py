"""Listings of the ladder's machine code."""

from cachequant.kernels import selfcheck
from cachequant.study import assembly


def test_the_block_that_multiplies_most_is_shown_without_directives():
    loop = "\tvpmulld %ymm0, %ymm1, %ymm2 # note\n\t.p2align 4\n\timul %eax, %ebx\n\tjne .LBB0_1\n\tmovl %eax, %ebx\n"
    text = f"f:\n\t.cfi_startproc\n\timul %eax, %ebx\n.LBB0_1:\n{loop}.LBB0_2:\n\tret\n"
    assert assembly.hot_loop(text) == "vpmulld %ymm0, %ymm1, %ymm2\nimul %eax, %ebx\njne .LBB0_1"


def test_every_rung_has_a_loop_that_multiplies():
    found = assembly.listings()
    assert list(found) == ["triple loop, compiled", "blocked", "SIMD"]
    for text in found.values():
        assert any(map(assembly.multiplies, text.splitlines()))
    if selfcheck.active().instruction.startswith("llvm.x86.avx2"):
        assert found["SIMD"].count("vpmaddwd") == 2 * 12  # a tile of 6 x 16, two steps a turn
