"""Machine code of the rungs of the ladder: the loop in which each of them spends its time."""

import re
from collections.abc import Callable

from llvmlite import binding, ir
from numba import int8, int32, njit

from cachequant.kernels import ladder, micro, native, products, selfcheck
from cachequant.kernels.simd import KernelSet
from cachequant.study import ladder_bench

MULTIPLY = re.compile(r"\s(v?pm(add|ul)\w*|v?pdp\w*|vfn?m(add|sub)\w*|imul\w*|[us]dot|[usf]?ml[as]l?\w*|mul)\s")
_BLOCK = re.compile(r"\n(?=[.\w$@]+:)")
_BACK = re.compile(r"(j[a-z]+|b\.\w+|cbn?z)\s")  # the jump that closes the loop
_NOISE = re.compile(r"^\s*(\.|#|//|$)|^[.\w$@]+:\s*$")


def hot_loop(text: str) -> str:
    """The block of an assembly listing that multiplies most, up to its first jump, without directives and comments."""
    block = max(_BLOCK.split(text), key=lambda part: len(MULTIPLY.findall(part)))
    lines = [re.sub(r"\s*(#|//).*", "", line).strip() for line in block.splitlines() if not _NOISE.match(line)]
    lines = [line.replace("\t", " ") for line in lines if line and not line.endswith(":")]
    last = next((i for i, line in enumerate(lines) if _BACK.match(line)), len(lines))
    return "\n".join(lines[: last + 1])


def multiplies(line: str) -> bool:
    """Whether an instruction multiplies."""
    return bool(MULTIPLY.search(f" {line} "))


def listings() -> dict[str, str]:
    """{rung: assembly of its hot loop} on this CPU, compiled anew: what comes from a cache has no listing."""
    codes, sums = int8[:, ::1], int32[:, ::1]
    triple, blocked = njit(ladder.triple_loop.py_func), njit(ladder.blocked.py_func)
    for rung in (triple, blocked):
        rung.compile((codes, codes, sums))
    return {
        ladder_bench.TRIPLE: hot_loop(_numba(triple)),
        ladder_bench.BLOCKED: hot_loop(_numba(blocked)),
        ladder_bench.FLOATS: hot_loop(_kernel(selfcheck.active(), products.floats)),
        **{ladder_bench.SIMD + s.name: hot_loop(_kernel(s, products.codes)) for s in ladder_bench.sets()},
    }


def _numba(function) -> str:
    (text,) = function.inspect_asm().values()
    return text


def _kernel(kernel_set: KernelSet, product: Callable) -> str:
    """The largest tile of a kernel set."""
    triple = binding.get_process_triple()
    module = ir.Module("tile")
    module.triple = triple
    micro.chain(module, product(kernel_set), kernel_set.rows).linkage = "external"
    features = binding.get_host_cpu_features().flatten()
    machine = native.target_machine(triple, binding.get_host_cpu_name(), features)
    return machine.emit_assembly(native.optimize(module, machine))
