"""What codes and scales of one matrix have to obey, whoever wrote them."""

import numpy as np

from cachequant.errors import AssetError
from cachequant.quantize import Quantized

_LEAST, _MOST = -119, 127  # powers of two of scales: below, a step would not be a normal float32; above, infinite


def check_quantized(q: Quantized, codes_name: str, scales_name: str) -> None:
    """Refuse codes and scales that no quantizer writes; needs little memory beside them.

    Raises
    ------
    AssetError
        The code -128, a scale that is negative, not finite or out of range, or a zero scale above non-zero codes.
    """
    if q.codes.min() < -127:
        row, column = np.argwhere(q.codes < -127)[0]
        raise AssetError(f"tensor {codes_name!r}[{row}, {column}] is -128; codes are from -127 to 127")
    n = q.quantizer.scale.steps
    if n is None:
        bad = ~np.isfinite(q.scales) | np.signbit(q.scales)
        allowed = "scales are finite and not negative"
        zero = q.scales == 0
    else:
        zero = q.scales == np.iinfo(q.scales.dtype).min
        bad = ~zero & ((q.scales.astype(int) > n * _MOST) | (q.scales < n * _LEAST))
        allowed = f"indices of scales 2^(k/{n}) are from {n * _LEAST} to {n * _MOST}"
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise AssetError(f"tensor {scales_name!r}[{row}, {column}] is {q.scales[row, column]}; {allowed}")
    block = q.quantizer.block(q.codes.shape[1])
    for row, column in np.argwhere(zero):
        group = q.codes if q.scales.size == 1 else q.codes[row, column * block : (column + 1) * block]
        if group.any():
            raise AssetError(f"tensor {scales_name!r}[{row}, {column}] is zero, but codes of {codes_name!r} are not")
