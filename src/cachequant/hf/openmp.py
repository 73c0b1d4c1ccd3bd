"""One pool of threads for torch and for our kernels.

torch brings its own libgomp. If it is loaded first, Numba loads the system's beside it, and two pools spin on the same
cores. Symbols of a library that is loaded globally win, so Numba's parallel regions then run in torch's pool.
"""

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path

from cachequant.errors import InputError


def require(*packages: str) -> None:
    """Check that packages are installed, without importing them. Raises InputError for the first that is not."""
    for name in packages:
        if find_spec(name) is None:
            raise InputError(f"cachequant.hf needs {name}, which is not installed: pip install 'cachequant[hf]'")


def share() -> bool:
    """Let kernels that are imported from now on run in the pool of torch's libgomp.

    Returns
    -------
    bool
        False where there is nothing to do: the kernels are there already (a libgomp that Numba loaded first is torch's
        as well), or torch has no libgomp of its own.
    """
    if "cachequant.kernels" in sys.modules:
        return False
    folder = Path(find_spec("torch").origin).parent
    found = [*sorted(folder.glob("lib/libgomp*.so*")), *sorted(folder.parent.glob("torch.libs/libgomp*.so*"))]
    if not found:
        return False
    import torch  # noqa: F401  # finds its libraries by itself

    ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)
    return True
