"""Whether logits depend on how a prompt is cut, in this decoder and in others.

A hit in a prefix cache computes a prompt in two parts, the first in an earlier request. Float32 products elsewhere add up
in an order that depends on how many tokens there are, so the last bits of an input change with the cut; where it is
then rounded to codes, a last bit can become a whole step.
"""

from collections.abc import Callable, Sequence

import numpy as np

from cachequant.decoder.model import Model
from cachequant.errors import InputError
from cachequant.quantize import quantize
from cachequant.schemes import Quantizer
from cachequant.study.timing import median

Logits = Callable[[Sequence[Sequence[int]]], np.ndarray]


def compare(logits: Logits, prompts: Sequence[Sequence[int]], cut: int) -> dict:
    """Prompts run whole, and cut after `cut` tokens.

    Parameters
    ----------
    logits : parts of a prompt -> (V,) logits of its last token.

    Returns
    -------
    {"differences": largest |difference| of a logit in each prompt, "median", "largest" of them, "greedy_changes": in how
    many prompts another token is the most likely one, "prompts": how many}

    Raises
    ------
    InputError : no tokens before the cut, or behind it.
    """
    if short := [p for p in prompts if not 0 < cut < len(p)]:
        raise InputError(f"a cut after {cut} tokens leaves nothing on one side of a prompt of {len(short[0])}")
    differences, changes = [], 0
    for prompt in prompts:
        whole, parts = logits([prompt]), logits([prompt[:cut], prompt[cut:]])
        differences.append(float(np.abs(whole - parts).max()))
        changes += int(whole.argmax()) != int(parts.argmax())
    return {
        "differences": differences,
        "median": median(differences),
        "largest": max(differences),
        "greedy_changes": changes,
        "prompts": len(differences),
    }


def ours(model: Model) -> Logits:
    """Logits by a session of this decoder."""

    def logits(parts: Sequence[Sequence[int]]) -> np.ndarray:
        with model.session() as session:
            return [session.extend(part) for part in parts][-1]

    return logits


def moved_codes(inputs: Sequence[np.ndarray], quantizer: Quantizer, relative: float) -> dict[str, float]:
    """What a tiny change of a linear layer's inputs does to their codes.

    Parameters
    ----------
    inputs : (T, K) float32 matrices.
    relative : size of the change, a random fraction of each value.

    Returns
    -------
    {"codes": fraction of codes that change, "scales": fraction of scales that do, "tokens": fraction of rows in which
    a code changes}
    """
    rng, moved = np.random.default_rng(0), []
    for x in inputs:
        noise = rng.uniform(-relative, relative, x.shape).astype(np.float32)
        a, b = quantize(x, quantizer), quantize(x + x * noise, quantizer)
        codes = a.codes != b.codes
        moved.append((codes.sum(), codes.size, (a.scales != b.scales).sum(), a.scales.size, codes.any(1).sum(), len(x)))
    totals = np.sum(moved, axis=0).tolist()
    return {key: totals[2 * i] / totals[2 * i + 1] for i, key in enumerate(("codes", "scales", "tokens"))}
