"""Our products as torch operators, so that `torch.compile` keeps them in its graphs.

An operator cannot take a packed matrix: it takes the number of one, under which a layer has put it down here. Outside
of compiled code layers call `run` and `look_up` directly: the dispatcher costs as much as a small product.
"""

import itertools
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import library

from cachequant.decoder.linear import PackedLinear
from cachequant.errors import InputError
from cachequant.kernels import gemm

_packed: WeakValueDictionary[int, PackedLinear] = WeakValueDictionary()
_numbers = itertools.count()


def put_down(packed: PackedLinear) -> int:
    """The number of a packed layer; it is forgotten with the layer."""
    number = next(_numbers)
    _packed[number] = packed
    return number


def run(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """(..., K) float32 on the CPU -> (..., N); the tensors' memory is used as it is, without a copy."""
    w = packed.weight
    out = np.empty((*x.shape[:-1], w.n), np.float32)  # cheaper than a tensor and its view
    if out.size:
        gemm.matmul(x.numpy().reshape(-1, w.k), w, packed.activation, packed.bias, None, out.reshape(-1, w.n))
    return torch.from_numpy(out)


def look_up(ids: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """(...) ids -> (..., K) float32 rows. Raises InputError for ids outside the matrix."""
    wanted, w = ids.numpy().reshape(-1), packed.weight
    if not wanted.size:
        return torch.empty(*ids.shape, w.k)
    if not 0 <= wanted.min() <= wanted.max() < w.n:
        raise InputError(f"token ids from {wanted.min()} to {wanted.max()}; allowed: 0 to {w.n - 1}")
    return torch.from_numpy(np.ascontiguousarray(gemm.rows(w, wanted))).view(*ids.shape, w.k)


@library.custom_op("cachequant::linear", mutates_args=(), device_types="cpu")
def linear(x: torch.Tensor, number: int, outputs: int) -> torch.Tensor:
    """`run` for compiled code; `outputs` is N."""
    return run(x, _packed[number])


@linear.register_fake
def _(x: torch.Tensor, number: int, outputs: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], outputs))


@library.custom_op("cachequant::embedding", mutates_args=(), device_types="cpu")
def embedding(ids: torch.Tensor, number: int, width: int) -> torch.Tensor:
    """`look_up` for compiled code; `width` is K."""
    return look_up(ids, _packed[number])


@embedding.register_fake
def _(ids: torch.Tensor, number: int, width: int) -> torch.Tensor:
    return ids.new_empty((*ids.shape, width), dtype=torch.float32)
