"""What our parts make of transformers' own forward pass: arms in its model classes, on one prompt.

Every arm is `transformers` with something of ours inside, so what is not ours, such as its attention, its norms and its
Python, is the same in all of them.
"""

from collections.abc import Sequence

from cachequant.study.crew import Progress, silent
from cachequant.study.decode_bench import COMPARED, DecodeBench

ARMS = ("transformers-fp32", "hf-int8", "hf-bfp8", "hf-kv-dynamic", "hf-kv-k4v4")
PROMPT = 270


class TransformersBench(DecodeBench):
    """`DecodeBench` with the bytes of keys and values compared too."""

    compared = (*COMPARED, "bytes")


def transformers(
    model: str = "smollm2-135m",
    arms: Sequence[str] | None = None,
    prompt: int = PROMPT,
    new: int | None = None,
    repeats: int = 5,
    threads: int | None = None,
    progress: Progress = silent,
) -> dict:
    """Prefill and decode speed of transformers with our parts in it, and `bytes` of keys and values, interleaved.

    Parameters
    ----------
    model : a model's name.
    arms : of `cachequant.study.arms`: ``transformers-fp32``, ``hf-`` and a scheme, or a cache of `hf_cache_arms`.
    prompt : tokens of the prompt, which are cached when decoding begins.
    new : tokens to generate, the first one by the prefill; None is 40.
    repeats : rounds.
    threads : of torch and of our kernels, which share one pool.

    Returns
    -------
    The object of `DecodeBench.measure`.

    Raises
    ------
    InputError, AssetError : unknown arms or models, lengths that do not fit; before anything runs.
    """
    with TransformersBench(model, arms or ARMS, threads, progress) as bench:
        return bench.measure(prompt, new, repeats)
