"""Left padding: where each row of a batch begins."""

import torch

from cachequant.errors import InputError


def left_padding(mask: torch.Tensor, begun: bool = True) -> list[int]:
    """Columns before the first token of each row.

    Parameters
    ----------
    mask : (B, columns), 0 for padding.
    begun : every row has a token; else one may be padding only, as in the first chunks of a prompt.

    Raises
    ------
    InputError : no matrix, a row without a token, or padding after a token.
    """
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        shape = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise InputError(f"attention_mask is {shape}; allowed is a tensor (batch, tokens) of 0 and 1")
    real = mask != 0
    pads = real.shape[1] - real.sum(1)
    for row, pad in enumerate(pads.tolist()):
        if begun and pad == real.shape[1]:
            raise InputError(f"row {row} of attention_mask has no token")
        if not real[row, pad:].all():
            raise InputError(f"row {row} of attention_mask has padding after a token; allowed is padding on the left")
    return pads.tolist()


def refuse_padding(batch: int, args: tuple, kwargs: dict) -> None:
    """Raise InputError for a batch that may have padding, as far as the position ids that a layer hands on tell.

    Those of padding on the left repeat; without ids of its own for every row, a batch of several rows tells nothing.
    """
    ids = next((f["position_ids"] for f in (kwargs, kwargs.get("kwargs"), *args) if _has_positions(f)), None)
    unknown = batch > 1 and (ids is None or len(ids) != batch)
    if unknown or (ids is not None and ids.ndim == 2 and (ids.diff(dim=-1) != 1).any()):
        raise InputError(
            f"a batch of {batch} rows that may have padding: give RotatedCache(..., attention_mask=), of ones if there "
            "is none"
        )


def _has_positions(found) -> bool:
    return isinstance(found, dict) and isinstance(found.get("position_ids"), torch.Tensor)
