"""transformers with several kinds of cache as arms: the model and its layers are the same, only keys and values differ.

``hf-kv-dynamic`` is transformers' own cache of floats, ``hf-kv-k4v4`` (or any page format) `cachequant.hf.attach`,
``hf-quanto`` and ``hf-hqq`` are transformers' `QuantizedCache` at 4 bits. Layers are quantized as int8; another scheme
stands behind the name, as in ``hf-kv-k4v4/fp32``.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from cachequant import schemes
from cachequant.errors import AssetError, InputError
from cachequant.kv import formats
from cachequant.study.arms import Arm
from cachequant.study.torch_engine import Transformers

DYNAMIC, OURS = "hf-kv-dynamic", "hf-kv-"
BACKENDS = {"hf-quanto": ("quanto", "optimum", "optimum-quanto"), "hf-hqq": ("hqq", "hqq", "hqq")}
QUANTIZED = dict(nbits=4, q_group_size=64, residual_length=128)
LAYERS = "int8"


def arms(scheme: str = LAYERS, kv: str = "k4v4") -> dict[str, Arm]:
    """The arms of a table, {name: Arm}: those of `kv` and of transformers, with layers of a scheme."""
    names = [DYNAMIC, OURS + kv, *BACKENDS]
    return {name: get(name) for name in (names if scheme == LAYERS else [f"{name}/{scheme}" for name in names])}


def get(name: str) -> Arm:
    """An arm by name. Raises InputError naming what is allowed."""
    base, _, scheme = name.partition("/")
    scheme = schemes.get(scheme or LAYERS).name
    if base == DYNAMIC:
        return Arm(name, partial(_dynamic, scheme))
    if base in BACKENDS:
        return Arm(name, partial(_quantized, *BACKENDS[base], scheme))
    try:
        kv = formats.get(base.removeprefix(OURS))
    except InputError as error:
        known = ", ".join([DYNAMIC, *BACKENDS])
        raise InputError(f"unknown arm {name!r}: not {known}, nor {OURS} and a page format: {error}") from None
    return Arm(name, partial(_attached, kv, scheme))


class Cached(Transformers):
    """A transformers model in float32 or with quantized layers, and how its cache is made.

    Parameters
    ----------
    model, threads : as for `Transformers`.
    scheme : of the layers; ``fp32`` leaves them.
    make : from the configuration to a new cache; None lets the model make its own.
    """

    def __init__(self, model: str, threads: int, scheme: str, make: Callable | None = None):
        super().__init__(model, threads, scheme=None if scheme == "fp32" else scheme)
        self._make = make

    def new_cache(self):
        return self._make(self._model.config) if self._make else None

    def cache_bytes(self) -> int:
        if hasattr(self._cache, "bytes"):
            return self._cache.bytes()
        return tensor_bytes([vars(layer) for layer in self._cache.layers])


def _dynamic(scheme: str, model: str, threads: int) -> Cached:
    return Cached(model, threads, scheme)


def _attached(kv: formats.PageFormat, scheme: str, model: str, threads: int) -> Cached:
    from cachequant import kernels
    from cachequant.assets import models
    from cachequant.hf import attach
    from cachequant.kv.calibration import basis_for

    engine = Cached(model, threads, scheme)
    kernels.set_threads(threads)
    attach(engine._model, kv, basis_for(models.resolve(model)) if kv.compressed else "none")
    return engine


def _quantized(backend: str, module: str, package: str, scheme: str, model: str, threads: int) -> Cached:
    from transformers import QuantizedCache

    if find_spec(module) is None:
        raise AssetError(f"{package} is not installed")
    return Cached(model, threads, scheme, lambda config: QuantizedCache(backend, config, **QUANTIZED))


def tensor_bytes(*held) -> int:
    """Bytes of all tensors in containers, also of those that a quantized tensor is made of; each memory once."""
    import torch

    seen, waiting = {}, list(held)
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, torch.Tensor):
            inner = item.__tensor_flatten__()[0] if hasattr(item, "__tensor_flatten__") else []
            waiting.extend(getattr(item, name) for name in inner)
            if not inner:
                storage = item.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())
