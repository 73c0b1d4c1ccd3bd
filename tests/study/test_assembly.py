"""Listings of the ladder's machine code."""

from cachequant.kernels import simd
from cachequant.study import assembly, ladder_bench


def test_the_block_that_multiplies_most_is_shown_without_directives():
    loop = "\tvpmulld %ymm0, %ymm1, %ymm2 # note\n\t.p2align 4\n\timul %eax, %ebx\n\tjne .LBB0_1\n\tmovl %eax, %ebx\n"
    text = f"f:\n\t.cfi_startproc\n\timul %eax, %ebx\n.LBB0_1:\n{loop}.LBB0_2:\n\tret\n"
    assert assembly.hot_loop(text) == "vpmulld %ymm0, %ymm1, %ymm2\nimul %eax, %ebx\njne .LBB0_1"


def test_every_rung_has_a_loop_that_multiplies():
    found = assembly.listings()
    sets = [ladder_bench.SIMD + s.name for s in reversed(simd.available())]
    assert list(found) == [ladder_bench.TRIPLE, ladder_bench.BLOCKED, ladder_bench.FLOATS, *sets]
    for text in found.values():
        assert any(map(assembly.multiplies, text.splitlines()))
    for name, instruction in (("avx512-vnni", "vpdpbusd"), ("avx-vnni", "vpdpbusd"), ("neon-dot", "sdot")):
        if ladder_bench.SIMD + name in found:
            assert found[ladder_bench.SIMD + name].count(instruction) == 2 * 12  # 12 vectors of sums, two steps a turn
