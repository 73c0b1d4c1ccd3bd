"""Arithmetic and nothing else: how many operations a second the registers of this CPU can make.

The flat roofs of the roofline model (Williams et al. 2009) are what a loop reaches that multiplies and adds registers,
with the very instructions of our kernels: independent chains hide the latency of an instruction, and nothing is read
or written inside the loop. No matrix product reaches them, because it also has to load what it multiplies.
"""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace

import numpy as np
from llvmlite import binding, ir

from cachequant.kernels import micro, native, products, selfcheck
from cachequant.kernels.ir import I64, POINTER
from cachequant.kernels.simd import KernelSet

CHAINS = 12  # sums in flight: two instructions a cycle, each with a latency of six cycles
TURNS = 1 << 18
SECONDS = 0.1
KINDS = {"fp32": products.floats, "int8": products.codes}


def loop(kernel_set: KernelSet, kind: str, triple: str) -> ir.Module:
    """A module with `peak(turns, memory)`, which makes CHAINS products a turn; `memory` holds CHAINS + 1 vectors.

    A sum is multiplied by a fixed vector and added to itself: an operand that did not change would let the compiler
    multiply once, before the loop.
    """
    module = ir.Module(kind)
    module.triple = triple
    product = KINDS[kind](kernel_set)
    function, builder = micro.define(module, "peak", ir.FunctionType(ir.VoidType(), [I64, POINTER]), public=True)
    turns, memory = function.args
    tile = SimpleNamespace(builder=builder)
    vector, group = product.sums, product.group_bytes
    inputs = ir.VectorType(ir.IntType(32 // group), group * product.lanes) if product.integer else vector

    def at(i):
        return builder.bitcast(builder.gep(memory, [I64(4 * product.lanes * i)]), vector.as_pointer())

    def read(i):
        value = builder.load(at(i))
        value.align = 4
        return value

    def turn(_, sums):
        return [product.add(tile, total, fixed, builder.bitcast(total, inputs)) for total in sums]

    fixed = builder.bitcast(read(CHAINS), inputs)
    for i, total in enumerate(micro.counted(builder, turns, [read(i) for i in range(CHAINS)], turn)):
        builder.store(total, at(i)).align = 4
    builder.ret_void()
    return module


def operations(kernel_set: KernelSet, kind: str) -> int:
    """Multiplications and additions of one turn of the loop, counted as for a matrix product: two a product."""
    return 2 * CHAINS * kernel_set.lanes * (kernel_set.group if kind == "int8" else 1)


class PeakWork:
    """Runs the loops of the kernel set in use; runs inside a worker.

    Parameters
    ----------
    threads : that multiply at the same time.
    """

    def __init__(self, threads: int):
        self._set = selfcheck.active()
        self._pool = ThreadPoolExecutor(threads)
        self._memories = [np.zeros((CHAINS + 1) * self._set.lanes, np.float32) for _ in range(threads)]
        for kind in KINDS:
            self._pass(kind)

    def facts(self) -> dict:
        return {"kernel_set": self._set.name}

    def multiply(self, kind: str) -> dict:
        """Billions of operations a second of one kind, all threads together, for SECONDS."""
        passes, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < SECONDS:
            self._pass(kind)
            passes += 1
        return {"gops": passes * TURNS * len(self._memories) * operations(self._set, kind) / spent / 1e9}

    def _pass(self, kind: str) -> None:
        function = _compiled(self._set, kind)[1]
        list(self._pool.map(lambda memory: function(TURNS, memory.ctypes.data), self._memories))


@cache
def _compiled(kernel_set: KernelSet, kind: str):
    """(what keeps the code alive, the loop as a function that lets other threads run)."""
    triple = binding.get_process_triple()
    features = binding.get_host_cpu_features().flatten()
    machine = native.target_machine(triple, binding.get_host_cpu_name(), features)
    engine = binding.create_mcjit_compiler(native.optimize(loop(kernel_set, kind, triple), machine), machine)
    engine.finalize_object()
    kind_of = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
    return engine, kind_of(engine.get_function_address("peak"))
