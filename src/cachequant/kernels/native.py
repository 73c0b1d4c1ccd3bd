"""The generated functions of a kernel set as machine code: compiled once, kept on disk, loaded into this process.

They are compiled apart from Numba's functions, which call them by address: a driver compiles once for all kernel sets,
and the same path emits code for CPUs that this machine is not.
"""

import os
from functools import cache

import numpy as np
from llvmlite import binding, ir

from cachequant import kernels
from cachequant.kernels import hadamard, micro, products, rowops
from cachequant.kernels.simd import KernelSet

binding.initialize_all_targets()
binding.initialize_all_asmprinters()

TABLE_SIZE = 17
# places in the table that drivers take; the first three are plain numbers
GROUP, ROWS, UNSIGNED, *_ADDRESSES = range(TABLE_SIZE)
CHAIN_CODES, CHAIN_FLOATS, CHAIN_WIDE, BLOCKS_CODES, BLOCKS_FLOATS, BLOCKS_WIDE, *_OTHERS = _ADDRESSES
LARGEST, ENCODE, INTERLEAVE, WIDEN, EXPONENTS, HALVES, FINISH, TRANSFORM = _OTHERS
_FUNCTIONS = {
    LARGEST: rowops.largest,
    ENCODE: rowops.encode,
    INTERLEAVE: rowops.interleave,
    WIDEN: rowops.widen,
    EXPONENTS: rowops.steps_of_exponents,
    HALVES: rowops.steps_of_halves,
    FINISH: rowops.finish,
    TRANSFORM: hadamard.transform,
}
_TILES = {
    CHAIN_CODES: ("chain", "codes"),
    CHAIN_FLOATS: ("chain", "floats"),
    CHAIN_WIDE: ("chain", "wide"),
    BLOCKS_CODES: ("blocks", "codes"),
    BLOCKS_FLOATS: ("blocks", "floats"),
    BLOCKS_WIDE: ("blocks", "wide"),
}


def generate(kernel_set: KernelSet, triple: str) -> ir.Module:
    """All functions of a kernel set."""
    module = ir.Module(kernel_set.name)
    module.triple = triple
    for emit, product in _TILES.values():
        rows = 1 if product == "wide" else kernel_set.rows
        micro.by_rows(module, getattr(micro, emit), f"{emit}_{product}", getattr(products, product)(kernel_set), rows)
    for emit in _FUNCTIONS.values():
        emit(kernel_set, module)
    return module


def target_machine(triple: str, cpu: str, features: str = "") -> binding.TargetMachine:
    target = binding.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small")


def optimize(module: ir.Module, machine: binding.TargetMachine) -> binding.ModuleRef:
    """Parse, verify and run LLVM's passes."""
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_unrolling = False  # the generator unrolls; LLVM would unroll the rests
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(parsed, passes)
    return parsed


def _object_code(kernel_set: KernelSet) -> bytes:
    file = kernels.cache_folder() / f"{kernel_set.name}.o"
    if file.exists():
        return file.read_bytes()
    triple = binding.get_process_triple()
    machine = target_machine(triple, binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    code = machine.emit_object(optimize(generate(kernel_set, triple), machine))
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}")
    new.write_bytes(code)
    new.replace(file)
    return code


@cache
def _engine(kernel_set: KernelSet) -> binding.ExecutionEngine:
    triple = binding.get_process_triple()
    machine = target_machine(triple, binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    engine = binding.create_mcjit_compiler(binding.parse_assembly(f'target triple = "{triple}"'), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(_object_code(kernel_set)))
    engine.finalize_object()
    return engine


@cache
def table(kernel_set: KernelSet) -> np.ndarray:
    """(TABLE_SIZE,) int64: the set's numbers and the addresses of its functions, as the drivers take them."""
    engine, numbers = _engine(kernel_set), np.zeros(TABLE_SIZE, np.int64)
    numbers[[GROUP, ROWS, UNSIGNED]] = kernel_set.group, kernel_set.rows, kernel_set.unsigned
    for place, (emit, product) in _TILES.items():
        numbers[place] = engine.get_function_address(f"{emit}_{product}")
    for place, emit in _FUNCTIONS.items():
        numbers[place] = engine.get_function_address(emit.__name__)
    return numbers
