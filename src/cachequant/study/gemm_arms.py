"""Matrix products as arms, float32 in and float32 out: ours under any scheme, torch's, and torch's dynamic int8.

Runs inside a worker. Quantizing the activations is part of the product and inside the timer; packing the weights is
not, because that is done once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cachequant import schemes
from cachequant.errors import InputError
from cachequant.schemes import Scheme

TORCH = ("torch-fp32", "torch-int8")
LOOP_SECONDS, STREAM_SECONDS = 0.04, 0.12


@dataclass
class Product:
    """One weight matrix, packed: `call(x)` multiplies (M, K) inputs made by `Arm.inputs`."""

    call: Callable
    nbytes: int


class OurArm:
    """Our kernels under one scheme."""

    def __init__(self, scheme: Scheme, threads: int):
        from cachequant.kernels import set_threads

        self._scheme = scheme
        set_threads(threads)

    def inputs(self, x: np.ndarray) -> np.ndarray:
        return x

    def product(self, weight: np.ndarray) -> Product:
        from cachequant.decoder import linear

        layer = linear.pack([weight], [None], self._scheme)
        return Product(layer, layer.nbytes)


class TorchArm:
    """torch.nn.functional.linear, or torch.ao's dynamic int8 linear layer (weights with one scale a matrix)."""

    def __init__(self, int8: bool, threads: int):
        import torch

        self._torch, self._int8 = torch, int8
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    def inputs(self, x: np.ndarray):
        return self._torch.from_numpy(x)

    def product(self, weight: np.ndarray) -> Product:
        torch = self._torch
        matrix = torch.tensor(weight)
        if not self._int8:
            return Product(lambda x: torch.nn.functional.linear(x, matrix), matrix.nbytes)
        from cachequant.study.torch_engine import dynamic_int8

        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data = matrix
        return Product(dynamic_int8(torch.nn.Sequential(linear))[0], weight.size + 4)


def get(name: str) -> Callable[[int], "OurArm | TorchArm"]:
    """How to build an arm for a number of threads. Raises InputError for an unknown name."""
    if name in TORCH:
        return lambda threads: TorchArm(name == "torch-int8", threads)
    try:
        scheme = schemes.get(name)
    except InputError as error:
        raise InputError(f"unknown arm {name!r}: not one of {', '.join(TORCH)}, and {error}") from None
    if scheme.head is not None:
        raise InputError(f"arm {name!r} names a head; matrix products have none: {name.partition('+')[0]!r}")
    return lambda threads: OurArm(scheme, threads)


class GemmWork:
    """Products of random matrices at given shapes, timed for many rows and for one.

    Parameters
    ----------
    arm, threads : which arm, and of how many threads.
    shapes : (N, K) of each matrix.
    rows : M of `multiply`.
    stream_bytes : `stream` goes over copies of all matrices that take at least this together, so that none of them is
        still in a cache when its turn comes again.
    """

    def __init__(self, arm: str, threads: int, shapes: list[tuple[int, int]], rows: int, stream_bytes: int):
        built = get(arm)(threads)
        rng = np.random.default_rng(0)
        weights = [rng.normal(0, 0.02, shape).astype(np.float32) for shape in shapes]
        self._sets = [[built.product(w) for w in weights]]
        size = sum(p.nbytes for p in self._sets[0])
        self._sets += [[built.product(w) for w in weights] for _ in range(-(-stream_bytes // size) - 1)]
        self._many = [built.inputs(rng.normal(0, 1, (rows, k)).astype(np.float32)) for _, k in shapes]
        self._one = [built.inputs(rng.normal(0, 1, (1, k)).astype(np.float32)) for _, k in shapes]
        for product, many, one in zip(self._sets[0], self._many, self._one, strict=True):
            product.call(many), product.call(one)

    def facts(self) -> dict:
        return {"bytes": [p.nbytes for p in self._sets[0]], "copies": len(self._sets)}

    def multiply(self) -> dict:
        """Seconds of one product of each shape with all rows."""
        return {"seconds": [_loop(p.call, x) for p, x in zip(self._sets[0], self._many, strict=True)]}

    def hot(self) -> dict:
        """Seconds of one product of each shape with one row, the weights in the cache as far as they fit."""
        return {"seconds": [_loop(p.call, x) for p, x in zip(self._sets[0], self._one, strict=True)]}

    def stream(self) -> dict:
        """Seconds of one product of each shape with one row, the weights out of memory."""
        seconds, passes, begin = [0.0] * len(self._one), 0, time.perf_counter()
        while time.perf_counter() - begin < STREAM_SECONDS:
            for products in self._sets:
                for i, (product, x) in enumerate(zip(products, self._one, strict=True)):
                    tick = time.perf_counter()
                    product.call(x)
                    seconds[i] += time.perf_counter() - tick
            passes += len(self._sets)
        return {"seconds": [s / passes for s in seconds]}


def _loop(call: Callable, x) -> float:
    """Seconds of one call, over as many as fit LOOP_SECONDS."""
    calls, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < LOOP_SECONDS:
        call(x)
        calls += 1
    return spent / calls
