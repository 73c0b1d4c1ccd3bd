"""Attention and mask functions for transformers that read the codes of a `RotatedCache` directly.

Without such a cache in the running pass they are those of ``sdpa``.
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from cachequant.errors import InputError
from cachequant.hf.cache import reading

NAME = "cachequant"
# what changes attention, or asks for more than its output
UNKNOWN = ("softcap", "position_bias", "s_aux", "sliding_window", "head_mask", "output_attentions")


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Causal attention over pages: (B, heads, T, d) queries to (B, T, heads, d).

    Raises
    ------
    InputError : a mask, dropout, or a change of attention that the kernel does not know.
    """
    cache = reading()
    if cache is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    given = [name for name in UNKNOWN if kwargs.get(name)]
    if attention_mask is not None or dropout or given:
        what = given[0] if given else "dropout" if dropout else "a mask of its own"
        raise InputError(f"{what}: attention over codes is causal, with padding on the left and nothing else")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return cache.attend(module.layer_idx, query, scale), None


def mask(*args, mask_function=causal_mask_function, attention_mask: torch.Tensor | None = None, **kwargs):
    """No mask for a `RotatedCache`, whose padding has to be that of `attention_mask`; else that of ``sdpa``."""
    cache = reading()
    if cache is None:
        return sdpa_mask(*args, mask_function=mask_function, attention_mask=attention_mask, **kwargs)
    if mask_function is not causal_mask_function:
        raise InputError("a mask function of its own: attention over codes is causal")
    cache.expect(attention_mask)
    return None


def register() -> None:
    """Make both known to transformers under `NAME`."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
