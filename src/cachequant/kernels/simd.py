"""Kernel sets: one description per family of instructions, chosen by what the CPU has."""

import os
from dataclasses import dataclass

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
    needs : features (as LLVM names them) without which the set does not run.
    """

    name: str
    group: int
    lanes: int
    rows: int
    unsigned: bool
    needs: frozenset[str]

    @property
    def runs_here(self) -> bool:
        return self.needs <= cpu.features()


AVX2 = KernelSet("avx2", 2, 8, 6, False, frozenset({"avx2", "fma"}))
PORTABLE = KernelSet("portable", 2, 8, 6, False, frozenset())
SETS = {s.name: s for s in (AVX2, PORTABLE)}  # best first


def available() -> list[KernelSet]:
    """Kernel sets of this CPU, best first; CACHEQUANT_KERNELS restricts them to one.

    Raises
    ------
    InputError : CACHEQUANT_KERNELS names an unknown set, or one that this CPU cannot run.
    """
    sets = [s for s in SETS.values() if s.runs_here]
    wanted = os.environ.get("CACHEQUANT_KERNELS")
    if wanted is None:
        return sets
    if wanted not in [s.name for s in sets]:
        raise InputError(f"CACHEQUANT_KERNELS={wanted!r}: this CPU runs {', '.join(s.name for s in sets)}")
    return [SETS[wanted]]
