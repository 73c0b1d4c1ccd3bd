"""What has to hold before tokens are run, or stored keys and values are used again."""

import numpy as np

from cachequant.errors import InputError
from cachequant.schemes import Scheme


def require_stable(scheme: Scheme, what: str) -> None:
    """Raises InputError if logits under a scheme depend on how tokens are cut, so that nothing can be used again."""
    if not scheme.chunk_stable:
        raise InputError(
            f"{what} is not possible under scheme {scheme.name!r}: its activation scale is shared by all tokens of a "
            "call, so stored keys and values depend on the cut; allowed are schemes with scales by row or block"
        )


def check_ids(ids, vocab: int) -> np.ndarray:
    """(T,) int64 ids, or InputError naming the first bad one."""
    array = np.asarray(ids)
    if array.ndim != 1 or not array.size:
        raise InputError(f"expected at least one token id, got an array of shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise InputError(f"token ids have to be integers, got {array.dtype}")
    bad = np.flatnonzero((array < 0) | (array >= vocab))
    if bad.size:
        raise InputError(f"token id {array[bad[0]]} at {bad[0]} is outside the vocabulary [0, {vocab})")
    return array.astype(np.int64)
