"""Kernels that are compiled once, at their first call, for strided arrays: a contiguous array fits that code as well,
where Numba by itself would compile everything again for each layout that it meets."""

from numba import float32, int64, types, void
from numba.core.compiler_lock import global_compiler_lock

STRIDED = types.Array(float32, 3, "A")  # (tokens, heads, head_dim), a slice of a fused projection
MATRIX = types.Array(float32, 2, "C")
VECTOR = types.Array(float32, 1, "C")
ADDRESSES = types.Array(int64, 1, "C")


def compile_once(kernel, *arguments):
    """Compile for these argument types and for no others, unless another thread just did, and return the entry point:
    called by it, Numba does not look up the types of the arguments."""
    with global_compiler_lock:
        if not kernel.overloads:
            kernel.compile(void(*arguments))
            kernel.disable_compile()
        (compiled,) = kernel.overloads.values()
    return compiled.entry_point
