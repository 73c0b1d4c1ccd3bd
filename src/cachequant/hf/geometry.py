"""What a cache has to know of a transformers model: its shape, and where its queries may look."""

import inspect
from collections.abc import Callable

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from cachequant.errors import ConfigError


def geometry(config) -> tuple[int, int, int]:
    """(layers, kv_heads, head_dim) of a transformers configuration.

    Raises
    ------
    ConfigError : an encoder, cross attention, sliding windows, or layers that are no full attention.
    """
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        raise ConfigError(f"{config.model_type} has cross attention; allowed are models with a decoder only")
    config = config.get_text_config(decoder=True)
    for i, layer in enumerate(DynamicCache(config=config).layers):
        if type(layer) is not DynamicLayer:
            sliding = getattr(layer, "is_sliding", False)
            what = f"a sliding window of {config.sliding_window} tokens" if sliding else type(layer).__name__
            raise ConfigError(f"layer {i} of {config.model_type} has {what}; allowed is full attention in every layer")
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, kv_heads, head_dim


def cache_keyword(function: Callable) -> str:
    """Name under which a model, its `forward` or `generate` takes a cache: ``cache``, or the older ``past_key_values``.

    `generate` takes what the model's forward takes.
    """
    owner = getattr(function, "__self__", function)
    parameters = inspect.signature(getattr(owner, "forward", function)).parameters
    return "cache" if "cache" in parameters else "past_key_values"
