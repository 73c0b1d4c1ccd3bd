"""What our parts make of transformers' own forward pass: arms in its model classes, on one prompt.

Every arm is `transformers` with something of ours inside, so what is not ours, such as its attention, its norms and its
Python, is the same in all of them.
"""

from collections.abc import Sequence

from cachequant.assets import texts
from cachequant.errors import InputError
from cachequant.study.agreement import agreement
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
    score: int = 0,
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
    score : tokens whose predictions are compared with those of the first arm, see `accuracy`; 0 leaves that out.
    text : of these tokens and of those before them.

    Returns
    -------
    The object of `DecodeBench.measure`; with `score` it has `accuracy` too.

    Raises
    ------
    InputError, AssetError : unknown arms or models, lengths that do not fit; before anything runs.
    """
    with TransformersBench(model, arms or ARMS, threads, progress) as bench:
        ids = _scored(bench, prompt, score, text) if score else []
        found = bench.measure(prompt, new, repeats)
        return found | ({"accuracy": accuracy(bench, prompt, score, ids, text)} if score else {})


def accuracy(bench: DecodeBench, prompt: int, score: int, ids: list[int], text: str) -> dict:
    """How far the predictions of every arm are from those of the first, behind the same tokens of a text.

    The first `prompt` tokens are one call, as in `generate`; the `score` tokens behind them come one by one, so all
    that they see of the prompt was read back from the cache. A cache that keeps more of its newest tokens as they are
    has an advantage here that it pays for in bytes.

    Returns
    -------
    {"against": arm, "text": name, "context": tokens, "tokens": scored, "arms": {arm: figures of `agreement`}}.
    """
    first = bench.crew.names[0]
    found = agreement(bench, first, prompt, score, ids)
    return {"against": first, "text": text, "context": prompt, "tokens": score, "arms": found}


def _scored(bench: DecodeBench, prompt: int, score: int, text: str) -> list[int]:
    asset, needed = bench.asset, prompt + score
    if score < 0 or needed > asset.config.context:
        raise InputError(f"{prompt} + {score} scored tokens do not fit the context of {asset.config.context}")
    if asset.tokenizer is None:
        raise InputError(f"{asset.name} has no tokenizer, so no text can be scored: leave out the score")
    ids = asset.tokenizer.encode(texts.resolve(text).text[: 16 * needed])[:needed]
    if len(ids) < needed:
        raise InputError(f"{text} has {len(ids)} tokens, fewer than {prompt} + {score}")
    return ids
