"""Plug-ins for transformers; nothing here is imported before it is asked for."""

from importlib import import_module

_LAZY = {
    "RotatedCache": "cachequant.hf.cache",
    "attach": "cachequant.hf.attaching",
    "detach": "cachequant.hf.attaching",
    "cache_keyword": "cachequant.hf.geometry",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
