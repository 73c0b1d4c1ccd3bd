"""What pages of codes hold, seen from NumPy."""

import numpy as np

from cachequant.kernels.codebooks import CODED
from cachequant.kernels.coded import side_bytes
from cachequant.kv.formats import PAGE, PageFormat


def finite_scales(pages: np.ndarray, format: PageFormat, layers: int, kv_heads: int, head_dim: int) -> np.ndarray:
    """(P,) bool: whether all scales of a page of codes, and its plain floats, are finite. `pages`: (P, bytes) uint8."""
    at, finite = 0, np.ones(len(pages), bool)
    for sides in format.layers(layers):
        for _ in range(kv_heads):
            for bits in sides:
                part = pages[:, at : at + (size := side_bytes.py_func(bits, head_dim))]
                at += size
                if bits <= CODED:  # bfloat16: all ones in the exponent is infinity or NaN
                    finite &= ((part[:, -2 * PAGE :].view(np.uint16) & 0x7F80) != 0x7F80).all(1)
                else:
                    finite &= np.isfinite(part.view(np.float16 if bits == 16 else np.float32)).all(1)
    return finite


def plain_rows(
    page: np.ndarray, format: PageFormat, layers: int, kv_heads: int, head_dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values (layers, kv_heads, 32, head_dim) float32 of a page (bytes,) uint8 of an uncompressed format."""
    found, at = np.empty((2, layers, kv_heads, PAGE, head_dim), np.float32), 0
    count = PAGE * head_dim
    for layer, (k, v) in enumerate(format.layers(layers)):
        for head in range(kv_heads):
            for side, bits in enumerate((k, v)):
                part = page[at : at + count * bits // 8].view(f"f{bits // 8}")
                at += part.nbytes
                rows = part.reshape(PAGE, head_dim) if side else part.reshape(head_dim, PAGE).T
                found[side, layer, head] = rows
    return found[0], found[1]
