"""8-bit kernels, a paged KV store and a decoder for small language models on an ordinary CPU.

>>> import cachequant as cq
>>> model = cq.load("smollm2-135m", scheme="bfp8")
>>> model.generate("The history of Paris", max_new_tokens=50).text  # doctest: +SKIP
"""

from importlib import import_module

__version__ = "0.1.0"

_LAZY = {
    "Conversation": "cachequant.conversation",
    "load": "cachequant.decoder.model",
    "Model": "cachequant.decoder.model",
    "PrefixCache": "cachequant.kv.prefix",
    "Session": "cachequant.kv.session",
    "Scheme": "cachequant.schemes",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str):
    if name in ("hf", "kv"):
        return import_module(f"cachequant.{name}")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'cachequant' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_LAZY])
