"""Kernels: plain arrays in, plain arrays out, nothing validated.

Importing this package points Numba's disk cache at a folder of its own, named by a hash of every kernel source: Numba
itself looks only at the file of the function that it compiles, and would not see that the generator behind it changed.
"""

import hashlib
import os
import sys
from pathlib import Path

import numba
import platformdirs

from cachequant.kernels import cpu

_threads = 1  # Numba's own count is per Python thread, and asking for it takes 2 us
_CHOICE = os.environ.get("CACHEQUANT_KERNELS", "")  # attention is compiled for it
SPINS = "10000"  # about 0.3 ms of waiting: longer than the gaps within a token, soon asleep after the last one


def cache_folder() -> Path:
    """Folder of compiled kernels: depends on their sources, Numba's version, the CPU and CACHEQUANT_KERNELS."""
    root = os.environ.get("CACHEQUANT_CACHE") or platformdirs.user_cache_dir("cachequant")
    digest = hashlib.sha256(f"{numba.__version__} {cpu.architecture()} {sorted(cpu.features())} {_CHOICE}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    return Path(root) / "kernels" / digest.hexdigest()[:16]


def set_threads(n: int | None = None) -> int:
    """Use `n` threads in all kernels (None: one per physical core) and return how many they are.

    Numba's first call would also reset torch's thread count (both share OpenMP's); it is put back.
    """
    global _threads
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    n = cpu.physical_cores() if n is None else n
    n = max(1, min(n, most_threads()))
    numba.set_num_threads(n)
    _threads = n
    if torch:
        torch.set_num_threads(before)
    return n


def most_threads() -> int:
    """The largest number of threads that `set_threads` can set: logical processors, or NUMBA_NUM_THREADS."""
    return numba.config.NUMBA_NUM_THREADS


def get_threads() -> int:
    """Threads that the kernels use."""
    return _threads


def _configure() -> None:
    numba.config.CACHE_DIR = str(cache_folder())
    # "workqueue" aborts on concurrent calls; read when the first thread starts
    numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    missing = "GOMP_SPINCOUNT" not in os.environ
    if missing:  # read when libgomp loads; not left behind for child processes
        os.environ["GOMP_SPINCOUNT"] = SPINS
    set_threads()
    if missing:
        del os.environ["GOMP_SPINCOUNT"]


_configure()
