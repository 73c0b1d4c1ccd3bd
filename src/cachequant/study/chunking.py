"""Whether logits depend on how a prompt is cut, in this decoder and in others.

A hit in a prefix cache computes a prompt in two parts, the first in an earlier request. Float32 products elsewhere add
up in an order that depends on how many tokens there are, so the last bits of an input change with the cut; where it is
then rounded to codes, a last bit can become a whole step.
"""

from collections.abc import Callable, Sequence

import numpy as np

from cachequant import schemes
from cachequant.decoder.model import Model
from cachequant.errors import InputError
from cachequant.quantize import dequantize, quantize
from cachequant.schemes import Quantizer
from cachequant.study import taps, workloads
from cachequant.study.timing import median

PRODUCTS = ("float32", "float64")  # precisions of torch's products of rounded values
Logits = Callable[[Sequence[Sequence[int]]], np.ndarray]


def check(names: Sequence[str], splits: Sequence[str], products: Sequence[str]) -> None:
    """Raises InputError for an unknown scheme, a split that is none, or another precision."""
    for name in names:
        schemes.get(name)
    for split in splits:
        parts(split)
    for precision in products:
        if precision not in PRODUCTS:
            raise InputError(f"products in {precision!r}: allowed are {', '.join(PRODUCTS)}")


def parts(split: str) -> tuple[int, int]:
    """Tokens of the two parts of ``9+2``. Raises InputError for anything else."""
    found = split.split("+")
    if len(found) != 2 or not all(part.isascii() and part.isdigit() and int(part) for part in found):
        raise InputError(f"split {split!r}: give the tokens of two parts, such as 9+2")
    return int(found[0]), int(found[1])


def prompts(model: Model, split: str, count: int) -> list[list[int]]:
    """Pieces of our long text, one after the other, each as long as both parts of a split."""
    length = sum(parts(split))
    ids = workloads.prompt_ids(count * length, model.config.vocab, model.tokenizer)
    return [ids[i : i + length] for i in range(0, len(ids), length)]


def compare(logits: Logits, prompts: Sequence[Sequence[int]], split: str) -> dict:
    """Prompts run whole, and cut after the first part of a split.

    Parameters
    ----------
    logits : parts of a prompt -> (V,) logits of its last token.

    Returns
    -------
    {"differences": largest |difference| of a logit in each prompt, "median", "largest" of them, "greedy_changes": in
    how many prompts another token is the most likely one, "prompts": how many}
    """
    differences, changes, cut = [], 0, parts(split)[0]
    for prompt in prompts:
        whole, cut_up = logits([prompt]), logits([prompt[:cut], prompt[cut:]])
        differences.append(float(np.abs(whole - cut_up).max()))
        changes += int(whole.argmax()) != int(cut_up.argmax())
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


def moved_codes(model: Model, ids: list[int], names: Sequence[str], relative: float) -> dict[str, dict[str, float]]:
    """What a tiny change of the inputs of a float32 model's linear layers does to their codes.

    Parameters
    ----------
    ids : a text.
    names : schemes; those that do not quantize inputs are passed over.
    relative : most that each value is changed by, as a fraction of itself, at random.

    Returns
    -------
    {scheme: {"codes": fraction of codes that change, "scales": fraction of scales that do, "largest": the largest
    change of a value that codes stand for, in units of the root mean square of its row}}
    """
    rng, inputs = np.random.default_rng(0), list(taps.capture(model, ids).values())
    changed = [x + x * rng.uniform(-relative, relative, x.shape).astype(np.float32) for x in inputs]
    wanted = {name: schemes.get(name).activation for name in names}
    return {name: _moved(inputs, changed, quantizer) for name, quantizer in wanted.items() if quantizer}


def _moved(inputs: list[np.ndarray], changed: list[np.ndarray], quantizer: Quantizer) -> dict[str, float]:
    codes, scales, largest = [], [], 0.0
    for x, y in zip(inputs, changed, strict=True):
        a, b = quantize(x, quantizer), quantize(y, quantizer)
        codes.append((a.codes != b.codes).mean())
        scales.append((a.scales != b.scales).mean())
        moved = np.abs(dequantize(a) - dequantize(b)) / np.sqrt((x * x).mean(1, keepdims=True))
        largest = max(largest, float(moved.max()))
    return {"codes": float(np.mean(codes)), "scales": float(np.mean(scales)), "largest": largest}
