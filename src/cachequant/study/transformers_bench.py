"""What our parts make of transformers' own forward pass: arms in its model classes, on one prompt.

Every arm is `transformers` with something of ours inside, so what is not ours, such as its attention, its norms and its
Python, is the same in all of them.
"""

from collections.abc import Sequence

from cachequant.errors import InputError
from cachequant.study import hf_cache_bench
from cachequant.study.crew import Progress, silent
from cachequant.study.decode_bench import COMPARED, DecodeBench
from cachequant.study.hf_cache_arms import DYNAMIC, is_cache

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
    score: int = 0,
    windows: int = hf_cache_bench.WINDOWS,
    text: str = "enwiki",
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
    score : predictions behind `prompt` tokens that are compared for arms that differ in their cache, see
        `hf_cache_bench`: with float32 layers, whatever the arms' layers are; 0 leaves that out.
    windows : of the text; each has so many scored tokens.
    text : of these tokens and of those before them.

    Returns
    -------
    The object of `DecodeBench.measure`; with `score` it has `accuracy` of `hf_cache_bench.compare` too.

    Raises
    ------
    InputError, AssetError : unknown arms or models, lengths that do not fit; before anything runs.
    """
    names = list(arms or ARMS)
    with TransformersBench(model, names, threads, progress) as bench:
        if not score:
            return bench.measure(prompt, new, repeats)
        caches = [DYNAMIC, *(name for name in names if is_cache(name) and name.partition("/")[0] != DYNAMIC)]
        if len(caches) == 1:
            raise InputError(f"a score compares caches: name arms such as hf-kv-k4v4, not only {', '.join(names)}")
        how = dict(context=prompt, score=score, windows=windows, text=text)
        hf_cache_bench.check(bench.asset, caches, **how)
        found = bench.measure(prompt, new, repeats)
    compared = hf_cache_bench.compare(model, caches, **how, threads=threads, progress=progress)
    return found | {"accuracy": compared["accuracy"]}
