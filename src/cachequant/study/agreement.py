"""Whether two arms run the same model: their logits after the same tokens, fed one by one behind a prompt."""

import numpy as np

from cachequant.study.decode_bench import DecodeBench


def agreement(bench: DecodeBench, reference: str, prompt: int = 32, steps: int = 4) -> dict[str, dict]:
    """How far the next-token distributions of every arm are from those of one of them.

    All arms see the same tokens, the greedy ones of the reference, so that one different choice does not make
    everything after it differ.

    Parameters
    ----------
    bench : its arms are compared.
    reference : arm to compare with; it has to run.
    prompt : tokens of the prompt.
    steps : tokens behind it; there are 1 + `steps` positions.

    Returns
    -------
    {arm: {"kl": mean divergence from the reference in nats, "top1": share of positions with the same arg max, "error":
    largest difference of two logits, each taken from the mean of its position, over the reference's standard
    deviation}}; arms that failed are left out.
    """
    ids = bench.prompt_ids(prompt)
    forced = bench.crew.ask(reference, "generate", ids=ids, new=steps)["ids"]
    truth = bench.logits(reference, ids, forced)
    found = {}
    for arm in [name for name in bench.crew.names if name != reference]:
        logits = bench.logits(arm, ids, forced)
        if logits is not None:
            found[arm] = compared(logits, truth)
    return found


def compared(logits: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """The figures of `agreement` for (positions, vocab) logits."""
    x, y = (a - a.mean(-1, keepdims=True, dtype=np.float64) for a in (logits, truth))
    log_p, log_q = _log_softmax(y), _log_softmax(x)
    return {
        "kl": float((np.exp(log_p) * (log_p - log_q)).sum(-1).mean()),
        "top1": float((x.argmax(-1) == y.argmax(-1)).mean()),
        "error": float((np.abs(x - y) / y.std(-1, keepdims=True)).max()),
    }


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
