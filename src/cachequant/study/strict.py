"""Data as strict JSON values: nothing that JSON cannot hold gets through, and the message says where it was."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cachequant.errors import ResultError


def plain(value: Any, where: str) -> Any:
    """Converts dataclasses, tuples, NumPy scalars and arrays to JSON values.

    Raises
    ------
    ResultError
        NaN or an infinity, a key that is not text, or an object of another kind, with its place, as in
        `data.rows[3].perplexity`.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ResultError(f"{where} is {value}; a result holds finite numbers only (null for none)")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ResultError(f"{where} has the key {key!r}; keys of a result are text")
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise ResultError(f"{where} is a {type(value).__name__}; a result holds JSON values and NumPy arrays only")
