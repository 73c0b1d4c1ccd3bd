"""Two lines that make a transformers model keep its keys and values as codes and read them as such."""

import inspect

from transformers import DynamicCache

from cachequant.errors import ConfigError, InputError
from cachequant.hf import packed
from cachequant.hf.cache import PASSES, RotatedCache, prepare
from cachequant.hf.geometry import cache_keyword
from cachequant.kv.basis import Basis
from cachequant.kv.formats import PageFormat

_PLACE = "_cachequant_attached"
_DEFAULT = "_prepare_cache_for_generation"  # of transformers: makes generate's cache if there is none


def attach(model, kv: str | PageFormat = "k4v4", calibration: str | Basis = "none") -> None:
    """Give a model pages of codes: `generate` and calls make a `RotatedCache`, and attention reads its codes.

    A query sees exact keys and values in its own page of 32 tokens and in the leading page, codes elsewhere, however
    the tokens are cut into calls: the rule of `cachequant.load(kv=...)`. Padding on the left is read from
    `attention_mask`. A cache of another kind that is given by name keeps working as before.

    Parameters
    ----------
    model : a transformers model with a decoder only, on the CPU.
    kv, calibration : as for `RotatedCache`.

    Raises
    ------
    ConfigError : sliding windows, cross attention, a model without transformers' attention interface.
    InputError : a format or calibration that does not fit; a model that has been attached already.
    """
    if hasattr(model, _PLACE):
        raise InputError("the model is attached already: call cachequant.hf.detach first")
    attached = _Attached(model, prepare(model.config, kv, calibration))
    packed.register()
    attached.begin(model)
    setattr(model, _PLACE, attached)


def detach(model) -> None:
    """Undo `attach`. Raises InputError for a model that is not attached."""
    if not hasattr(model, _PLACE):
        raise InputError("the model is not attached: call cachequant.hf.attach first")
    getattr(model, _PLACE).end(model)
    delattr(model, _PLACE)


class _Attached:
    """What `attach` changed in a model."""

    def __init__(self, model, prepared):
        self._prepared, self._before = prepared, model.config._attn_implementation
        self._keyword = cache_keyword(model.base_model)
        self._names = list(inspect.signature(model.base_model.forward).parameters)
        self._hooks = []

    def begin(self, model) -> None:
        model.set_attn_implementation(packed.NAME)
        if model.config._attn_implementation != packed.NAME:
            raise ConfigError(f"{type(model).__name__} does not use transformers' attention interface")
        base = model.base_model
        self._hooks = [
            base.register_forward_pre_hook(self._enter, with_kwargs=True),
            base.register_forward_hook(self._leave, always_call=True),
        ]
        if hasattr(model, _DEFAULT):
            setattr(model, _DEFAULT, self._preparing(getattr(model, _DEFAULT)))

    def end(self, model) -> None:
        for hook in self._hooks:
            hook.remove()
        model.__dict__.pop(_DEFAULT, None)
        model.set_attn_implementation(self._before)

    def _preparing(self, default):
        """The cache that `generate` makes itself is one of codes; one that the caller chose is left alone."""

        def prepare_cache(generation_config, model_kwargs, *args, **kwargs):
            given = model_kwargs.get(self._keyword) is not None
            result = default(generation_config, model_kwargs, *args, **kwargs)
            made = model_kwargs.get(self._keyword)
            if not given and type(made) is DynamicCache and not made.offloading:
                model_kwargs[self._keyword] = RotatedCache.of(self._prepared, model_kwargs.get("attention_mask"))
            return result

        return prepare_cache

    def _enter(self, module, args, kwargs):
        kwargs = dict(zip(self._names, args, strict=False)) | kwargs
        cache, use = kwargs.get(self._keyword), kwargs.get("use_cache")
        if cache is None and (module.config.use_cache if use is None else use):
            cache = kwargs[self._keyword] = RotatedCache.of(self._prepared, None)
        PASSES.set((cache if isinstance(cache, RotatedCache) else None, *PASSES.get()))
        return (), kwargs

    def _leave(self, module, args, output) -> None:
        PASSES.set(PASSES.get()[1:])
