"""Kernel sets: one description per family of instructions, chosen by what the CPU has."""

import os
from dataclasses import dataclass, replace

from cachequant.errors import InputError
from cachequant.kernels import cpu

WIDTH = 16  # outputs in one panel of packed weights: one to four vectors of any set


@dataclass(frozen=True)
class KernelSet:
    """How one family of instructions multiplies 8-bit codes.

    name : as in CACHEQUANT_KERNELS.
    group : neighbours along k that one 32-bit lane adds up in one instruction.
    lanes : 32-bit lanes of one vector.
    rows : rows of the largest register tile.
    unsigned : weights are stored plus 128, and each row starts at -128 times the sum of its input codes.
    instruction : LLVM's name of the multiplying instruction; empty for plain vector operations with the same results.
    needs : features (as LLVM names them) without which the set does not run.
    """

    name: str
    group: int
    lanes: int
    rows: int
    unsigned: bool
    instruction: str
    needs: frozenset[str]

    @property
    def emulated(self) -> "KernelSet":
        """The same layout and arithmetic in operations that any CPU has: how tests run sets of other CPUs."""
        return replace(self, name=self.name + "-emulated", rows=3, instruction="", needs=frozenset())

    @property
    def wide(self) -> bool:
        """Whether inputs may have up to 16 bits."""
        return self.group == 2

    @property
    def runs_here(self) -> bool:
        return self.needs <= cpu.features()


def _set(name, group, lanes, rows, unsigned, instruction, *needs):
    return KernelSet(name, group, lanes, rows, unsigned, instruction, frozenset(needs))


SETS = {
    s.name: s
    for s in (  # best first
        _set("avx512-vnni", 4, 16, 12, True, "llvm.x86.avx512.vpdpbusd.512", "avx512vnni", "avx512bw", "fma"),
        _set("avx-vnni", 4, 8, 6, True, "llvm.x86.avx512.vpdpbusd.256", "avxvnni", "avx2", "fma"),
        _set("avx512", 2, 16, 12, False, "llvm.x86.avx512.pmaddw.d.512", "avx512bw", "fma"),
        _set("avx2", 2, 8, 6, False, "llvm.x86.avx2.pmadd.wd", "avx2", "fma"),
        _set("neon-dot", 4, 4, 6, False, "llvm.aarch64.neon.sdot.v4i32.v16i8", "dotprod"),
        _set("portable", 2, 8, 6, False, ""),
    )
}


def available(wide: bool = False) -> list[KernelSet]:
    """Kernel sets of this CPU, best first; CACHEQUANT_KERNELS restricts them to one.

    wide : only sets that take inputs of more than 8 bits, also if CACHEQUANT_KERNELS names one that does not.

    Raises
    ------
    InputError : CACHEQUANT_KERNELS names an unknown set, or one that this CPU cannot run.
    """
    sets = [s for s in SETS.values() if s.runs_here]
    wanted = os.environ.get("CACHEQUANT_KERNELS")
    if wanted is not None and wanted not in [s.name for s in sets]:
        raise InputError(f"CACHEQUANT_KERNELS={wanted!r}: this CPU runs {', '.join(s.name for s in sets)}")
    asked = [s for s in sets if wanted in (None, s.name)]
    return [s for s in asked if s.wide] or [s for s in sets if s.wide] if wide else asked


def chosen() -> KernelSet:
    """The set whose vectors and instructions attention uses too: the portable one if none is as asked for."""
    wanted = os.environ.get("CACHEQUANT_KERNELS")
    found = (s for s in SETS.values() if s.runs_here and wanted in (None, s.name))
    return next(found, SETS["portable"])
