"""What a page of codes holds, seen from NumPy."""

import numpy as np

from cachequant.kernels.codebooks import CODED
from cachequant.kernels.coded import side_bytes
from cachequant.kv.formats import PAGE, PageFormat


def finite_scales(block: np.ndarray, format: PageFormat, layers: int, kv_heads: int, head_dim: int) -> bool:
    """Whether all scales of a page of codes, and its plain floats, are finite. `block`: (bytes,) uint8."""
    at = 0
    for sides in format.layers(layers):
        for _ in range(kv_heads):
            for bits in sides:
                part = block[at : at + (size := side_bytes.py_func(bits, head_dim))]
                at += size
                if bits <= CODED:  # bfloat16: all ones in the exponent is infinity or NaN
                    bad = ((part[-2 * PAGE :].view(np.uint16) & 0x7F80) == 0x7F80).any()
                else:
                    bad = not np.isfinite(part.view(np.float16 if bits == 16 else np.float32)).all()
                if bad:
                    return False
    return True
