"""Plug-ins for transformers: 8-bit layers and their checkpoints, and a cache of codes.

>>> import cachequant.hf
>>> from transformers import AutoModelForCausalLM
>>> config = cachequant.hf.CacheQuantConfig(scheme="int8")
>>> model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=config)  # doctest: +SKIP

Importing this package registers the quantizer; without that, transformers refuses these checkpoints. Threads of torch
and of our kernels are one pool: Numba's OpenMP layer finds the libgomp that torch has loaded, and the other way round.
"""

from importlib import import_module
from importlib.util import find_spec

from cachequant.errors import InputError

_LAZY = {
    "CacheQuantConfig": "cachequant.hf.config",
    "QuantizedEmbedding": "cachequant.hf.layers",
    "QuantizedLinear": "cachequant.hf.layers",
    "RotatedCache": "cachequant.hf.cache",
    "attach": "cachequant.hf.attaching",
    "cache_keyword": "cachequant.hf.geometry",
    "detach": "cachequant.hf.attaching",
    "quantize_": "cachequant.hf.replace",
}
__all__ = sorted(_LAZY)

for _needed in ("torch", "transformers"):
    if find_spec(_needed) is None:
        raise InputError(f"cachequant.hf needs {_needed}, which is not installed: pip install 'cachequant[hf]'")
import_module("cachequant.hf.quantizer")  # registers itself


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'cachequant.hf' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_LAZY])
