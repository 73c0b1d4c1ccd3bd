"""How large the error of a code is: of Gaussian vectors against theory, and of real ones step by step.

Theory: the distortion of Lloyd-Max quantizers of the unit Gaussian (Max 1960, table I) and the rate-distortion bound
2^-2R of a Gaussian source (Cover and Thomas 2006, theorem 10.3.2), which no code can undercut at R bits a value.
"""

import numpy as np

from cachequant.kv import codec

BITS = (2, 3, 4)
MAX_1960 = {2: 0.1175, 3: 0.03454, 4: 0.009497}
SCALE_BITS = 16  # a vector


def bound(bits: float) -> float:
    """Least relative squared error of a Gaussian source at so many bits a value."""
    return 2.0 ** (-2 * bits)


def coded(y: np.ndarray, bits: int, search: bool = True, feedback: np.ndarray | None = None) -> np.ndarray:
    """Vectors (..., d) as their codes give them back; `feedback` and `search` as for `codec.encode`."""
    return codec.decode(*codec.encode(y, bits, feedback, search), bits)


def relative(error: np.ndarray, x: np.ndarray) -> float:
    """Energy of the error over that of what was coded."""
    return float((error.astype(np.float64) ** 2).sum() / (x.astype(np.float64) ** 2).sum())


def gaussian(vectors: int, head_dims: tuple[int, ...] = (64, 128), seed: int = 0) -> list[dict]:
    """Relative squared error of Gaussian vectors, one row a width of code and head size.

    Returns
    -------
    [{"bits", "head_dim", "stored" (bits a value with the scale), "rms", "search" (relative squared errors), "lloyd_max"
    (of single values at the true scale), "bound" (at `bits`), "bound_stored" (at `stored`), "shrinkage": <x, y> / |x|^2
    with either scale}].
    """
    rows = []
    for d in head_dims:
        x = np.random.default_rng(seed).standard_normal((vectors, d)).astype(np.float32)
        for bits in BITS:
            stored = bits + SCALE_BITS / d
            row = {"bits": bits, "head_dim": d, "stored": stored, "lloyd_max": MAX_1960[bits]}
            shrinkage = {}
            for name, search in (("rms", False), ("search", True)):
                y = coded(x, bits, search)
                row[name] = relative(x - y, x)
                shrinkage[name] = float((x * y).sum(dtype=np.float64) / (x * x).sum(dtype=np.float64))
            rows.append({**row, "bound": bound(bits), "bound_stored": bound(stored), "shrinkage": shrinkage})
    return rows
