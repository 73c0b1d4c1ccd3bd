"""transformers with several kinds of cache as arms: the model and its layers are the same, only keys and values differ.

``hf-kv-dynamic`` is transformers' own cache of floats, ``hf-kv-k4v4`` (or any page format) `cachequant.hf.attach`,
``hf-quanto`` and ``hf-hqq`` are transformers' `QuantizedCache` at 4 bits in groups of 64 values of a vector. Layers are
quantized as int8; another scheme stands behind the name, and another calibration of pages behind that:
``hf-kv-k4v4/fp32/none``.
"""

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from cachequant import schemes
from cachequant.errors import AssetError, InputError
from cachequant.kv import formats
from cachequant.kv.basis import Basis
from cachequant.kv.calibration import basis_for, check_calibration
from cachequant.study.arms import Arm
from cachequant.study.torch_engine import Transformers

DYNAMIC, OURS = "hf-kv-dynamic", "hf-kv-"
# name of the backend, module, package, and the axis that makes groups of one vector's values: HQQ counts the other way
# round than quanto. Its authors advise this one; transformers' default, 0, was slower and had 2.5 times the divergence
BACKENDS = {"hf-quanto": ("quanto", "optimum", "optimum-quanto", 0), "hf-hqq": ("hqq", "hqq", "hqq", 1)}
QUANTIZED = dict(nbits=4, q_group_size=64, residual_length=128)  # transformers' defaults
LAYERS = "int8"


@dataclass(frozen=True)
class Kind:
    """What an arm keeps keys and values in; of the first two fields one is set, or none for floats.

    backend : of transformers' `QuantizedCache`: its name, module, package and axis.
    kv : our page format.
    calibration : of the pages.
    """

    backend: tuple[str, str, str, int] | None = None
    kv: formats.PageFormat | None = None
    calibration: str = "auto"

    def require(self) -> None:
        """Raise AssetError if a package is missing."""
        if self.backend and find_spec(self.backend[1]) is None:
            raise AssetError(f"{self.backend[2]} is not installed (make peers)")

    def basis(self, model: str) -> Basis | str:
        """The basis of a model's pages, fitted at the first use."""
        from cachequant.assets import models

        return basis_for(models.resolve(model), None, self.calibration) if self.kv.compressed else "none"

    def make(self, config, basis: Basis | str = "none"):
        """A new cache for a transformers configuration."""
        if self.kv:
            from cachequant.hf import RotatedCache

            return RotatedCache(config, self.kv, calibration=basis)
        from transformers import DynamicCache, QuantizedCache

        if not self.backend:
            return DynamicCache()
        name, *_, axis = self.backend
        return QuantizedCache(name, config, **QUANTIZED, axis_key=axis, axis_value=axis)


def get(name: str) -> Arm:
    """An arm by name. Raises InputError naming what is allowed."""
    _, _, rest = name.partition("/")
    scheme = schemes.get(rest.partition("/")[0] or LAYERS).name
    return Arm(name, partial(_engine, kind(name), scheme))


def is_cache(name: str) -> bool:
    """Whether an arm is one of this module."""
    return name.startswith((OURS, *BACKENDS))


def kind(name: str) -> Kind:
    """The cache of an arm. Raises InputError naming what is allowed."""
    base, _, rest = name.partition("/")
    calibration = rest.partition("/")[2]
    if base == DYNAMIC or base in BACKENDS:
        if calibration:
            raise InputError(f"unknown arm {name!r}: only pages of this library have a calibration")
        return Kind(BACKENDS.get(base))
    try:
        if not base.startswith(OURS):
            raise InputError("not a cache")
        kv = formats.get(base.removeprefix(OURS))
    except InputError as error:
        known = ", ".join([DYNAMIC, *BACKENDS])
        raise InputError(f"unknown arm {name!r}: not {known}, nor {OURS} and a page format: {error}") from None
    check_calibration(calibration or "auto")
    return Kind(kv=kv, calibration=calibration or "auto")


class Cached(Transformers):
    """A transformers model in float32 or with quantized layers, and its cache.

    Parameters
    ----------
    model, threads : as for `Transformers`.
    scheme : of the layers; ``fp32`` leaves them.
    kind : of cache.
    """

    def __init__(self, model: str, threads: int, scheme: str, kind: Kind):
        super().__init__(model, threads, scheme=None if scheme == "fp32" else scheme)
        self._kind = kind
        if kind.kv:
            from cachequant import kernels
            from cachequant.hf import attach

            kernels.set_threads(threads)
            attach(self._model, kind.kv, kind.basis(model))

    def new_cache(self):
        return None if self._kind.kv else self._kind.make(self._model.config)

    def cache_bytes(self) -> int:
        return held_bytes(self._cache)


def _engine(kind: Kind, scheme: str, model: str, threads: int) -> Cached:
    kind.require()
    return Cached(model, threads, scheme, kind)


def held_bytes(cache) -> int:
    """Bytes of a transformers cache, all that its layers hold."""
    return cache.bytes() if hasattr(cache, "bytes") else tensor_bytes([vars(layer) for layer in cache.layers])


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
