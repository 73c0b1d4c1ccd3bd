"""What a number format costs in quality: perplexity on a text, paired against float32 on the same tokens.

The number depends on how a text is cut, so that is fixed: windows without overlap from the start of the text, no
beginning-of-text token, all but the first token of a window scored. Beside the change of perplexity stand the
Kullback-Leibler divergence, how often the best token agrees, and the logit error without the shift that softmax
ignores.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cachequant import schemes
from cachequant.errors import InputError
from cachequant.kv import formats
from cachequant.schemes import Scheme
from cachequant.study import variants, window_sums
from cachequant.study.crew import Progress, silent
from cachequant.study.divergence import greedy_divergence
from cachequant.study.paired import BASELINE, summarize
from cachequant.study.variants import Variant
from cachequant.study.window_sums import WindowSums

__all__ = ["evaluate", "greedy_divergence", "perplexity", "summarize"]

ROWS = 128  # rows of logits at once: 25 MB with a vocabulary of 49,152
AT_ONCE = 8  # schemes whose weights are in memory together


def evaluate(
    model,
    compared: Sequence[str | Scheme | Variant],
    text,
    tokens: int = 4096,
    window: int = 1024,
    checkpoint: Path | None = None,
    progress: Progress = silent,
) -> dict:
    """Score a text under many schemes, each paired with float32 on the same tokens.

    Parameters
    ----------
    model : a model's name, or a loaded `Model` in fp32.
    compared : schemes, or scheme/pages such as ``fp32/k4v4``; fp32 itself always runs and need not be named.
    text : a text's name, or a `Text`.
    tokens : from the start of the text; a last window shorter than the others counts.
    window : tokens a window, at least 2.
    checkpoint : folder that keeps the sums of finished windows; the same call goes on from there.
    progress : called with (windows done, windows, scheme).

    Returns
    -------
    {"model", "sha256", "text", "text_sha256", "tokens", "window", "schemes": {name: {"scored", "nll", and but for fp32
    "kl", "top1", "top5", "centred_error", "mean_error" (sums), "max_error": one value a window}}}.

    Raises
    ------
    InputError : a model with random weights, lengths that do not fit, an unknown scheme; before any compute.
    """
    model, text = _loaded(model), _text(text)
    chosen = [s for s in map(variants.get, compared) if s.name != BASELINE]
    if len({s.name for s in chosen}) < len(chosen):
        raise InputError(f"a scheme is named twice: {', '.join(s.name for s in chosen)}")
    parts = _windows(model, text, tokens, window)
    sums = WindowSums(checkpoint, {"model": model.sha256, "text": text.sha256, "window": window})
    run = _Run(model, parts, sums, progress, len(chosen) + 1)
    for i in range(0, max(1, len(chosen)), AT_ONCE):
        run.group(chosen[i : i + AT_ONCE], first=i == 0)
    return {
        "model": model.name,
        "sha256": model.sha256,
        "text": text.name,
        "text_sha256": text.sha256,
        "tokens": tokens,
        "window": window,
        "schemes": {name: sums.columns(name, len(parts)) for name in (BASELINE, *(s.name for s in chosen))},
    }


class _Run:
    """One evaluation under way; float32's hidden states are kept, so that every group of schemes sees the same ones."""

    def __init__(self, model, parts: list[np.ndarray], sums: WindowSums, progress: Progress, count: int):
        self._model, self._parts, self._sums = model, parts, sums
        self._hidden: dict[int, np.ndarray] = {}
        self._progress, self._done, self._total = progress, 0, count * len(parts)

    def group(self, group: list[Variant], first: bool) -> None:
        """All windows under a few schemes, and under fp32 where that was not done."""
        models: dict[str, object] = {}
        for variant in group:
            if variant.kv.compressed:  # the basis is part of what the sums belong to
                models[variant.name], format = variant.of(self._model)
            else:
                format = repr(variant.scheme) if variant.kv.name == BASELINE else repr(variant)
            self._sums.expect(variant.name, format)
        for w, ids in enumerate(self._parts):
            wanted = [s for s in group if not self._sums.has(s.name, w, len(ids) - 1)]
            baseline = not self._sums.has(BASELINE, w, len(ids) - 1)
            for scheme in wanted:
                if scheme.name not in models:
                    models[scheme.name], _ = scheme.of(self._model)
                models[scheme.name].pool = self._model.pool  # exact pages are alike: one pool of them is enough
            if wanted or baseline:
                self._window(w, ids, {s.name: models[s.name] for s in wanted})
                self._sums.save()
            self._done += len(group) + first
            self._progress(self._done, self._total, f"window {w + 1} of {len(self._parts)}")

    def _window(self, w: int, ids: np.ndarray, others: dict) -> None:
        if w not in self._hidden:
            self._hidden[w] = hidden(self._model, ids)
        base = self._hidden[w]
        states = {name: hidden(model, ids) for name, model in others.items()}
        totals = {name: window_sums.empty(compared=True) for name in others}
        alone, targets = window_sums.empty(compared=False), ids[1:]
        for a in range(0, len(targets), ROWS):
            rows = slice(a, min(a + ROWS, len(targets)))
            reference = self._model.head(base[rows])
            window_sums.accumulate(alone, _score(reference, targets[rows]))
            for name, model in others.items():
                scores = _score(model.head(states[name][rows]), targets[rows], reference)
                window_sums.accumulate(totals[name], scores)
        for name, found in {BASELINE: alone, **totals}.items():
            self._sums.add(name, w, len(targets), found)


def hidden(model, ids: np.ndarray) -> np.ndarray:
    """(T, width) final hidden states of one window, run as one prefill in a session of its own."""
    with model.session() as session:
        return session.extend(ids, logits="hidden")


def perplexity(
    model: str,
    scheme: str | None = None,
    kv: str = "fp32",
    text: str | None = None,
    window: int = 1024,
    tokens: int = 4096,
    against: str | None = None,
    threads: int | None = None,
    calibration: str = "auto",
    progress: Progress = silent,
) -> dict:
    """One scheme on one text, as `cachequant perplexity` prints it.

    Parameters
    ----------
    scheme : a scheme's name; None is that of a checkpoint, else int8.
    kv : page format of keys and values.
    calibration : of coded pages, ``auto`` or ``none``.
    text : a text's name; None takes the best one at hand.
    against : None, or ``fp32`` for the change, the divergence and the agreement.

    Returns
    -------
    {"perplexity", "model", "scheme", "kv", "calibration", "text", "window", "tokens", "scored"}, and with `against` the
    figures of `summarize`.
    """
    if against not in (None, BASELINE):
        raise InputError(f"against {against!r} is not available; allowed: {BASELINE}")
    from cachequant.assets import texts

    kv = formats.get(kv)
    stored = _stored(model)
    if stored is not None and against:
        raise InputError(
            f"against {against}: {model} is a checkpoint quantized as {stored.name!r} and holds no float32 weights; "
            f"allowed: the float32 model with the scheme {stored.name}, which computes the same bits"
        )
    scheme = schemes.get(scheme) if scheme else stored or schemes.get("int8")
    chosen = Variant(scheme, kv, calibration)
    source = texts.default() if text is None else texts.resolve(text)
    loaded = _loaded(model, BASELINE if against else chosen.scheme, threads)
    chosen.kv.check(loaded.config.layers, loaded.config.head_dim)
    if against:
        found = summarize(evaluate(loaded, [chosen], source, tokens, window, progress=progress))[chosen.name]
    else:
        found = _alone(chosen.of(loaded)[0], source, tokens, window, progress)
    return {
        "perplexity": found.pop("perplexity"),
        "model": loaded.name,
        "scheme": chosen.scheme.name,
        "kv": chosen.kv.name,
        "calibration": chosen.calibration if chosen.kv.compressed else "none",
        "text": source.name,
        "window": window,
        "tokens": tokens,
        **found,
    }


def _alone(model, text, tokens: int, window: int, progress: Progress) -> dict:
    parts, total = _windows(model, text, tokens, window), window_sums.empty(compared=False)
    for w, ids in enumerate(parts):
        states, targets = hidden(model, ids), ids[1:]
        for a in range(0, len(targets), ROWS):
            rows = slice(a, min(a + ROWS, len(targets)))
            window_sums.accumulate(total, _score(model.head(states[rows]), targets[rows]))
        progress(w + 1, len(parts), "windows")
    scored = sum(len(ids) - 1 for ids in parts)
    return {"perplexity": float(np.exp(total["nll"] / scored)), "scored": scored, "windows": len(parts)}


def _score(logits: np.ndarray, targets: np.ndarray, reference: np.ndarray | None = None):
    from cachequant.kernels.score import score

    return score(logits, targets, reference)


def _stored(model: str) -> Scheme | None:
    """The scheme of a checkpoint, None for a float32 model."""
    from cachequant.assets import models

    return models.resolve(model).scheme


def _loaded(model, scheme: str | Scheme = BASELINE, threads: int | None = None):
    if isinstance(model, str):
        import cachequant

        model = cachequant.load(model, scheme=scheme, threads=threads)
    if model.random or model.tokenizer is None:
        raise InputError(f"{model.name} has random weights or no tokenizer: it measures speed, not quality")
    return model


def _text(text):
    if isinstance(text, str):
        from cachequant.assets import texts

        return texts.resolve(text)
    return text


def _windows(model, text, tokens: int, window: int) -> list[np.ndarray]:
    """Ids of the windows; a last one of a single token has nothing to score and is left out."""
    context = model.config.context
    if not 2 <= window <= context:
        raise InputError(f"window {window!r} has to be between 2 and the context of {context}")
    if tokens < 2:
        raise InputError(f"tokens {tokens!r} has to be at least 2")
    ids = np.asarray(model.tokenizer.encode(text.text), np.int64)
    if len(ids) < tokens:
        raise InputError(f"{text.name} has {len(ids)} tokens, fewer than the {tokens} asked for")
    parts = [ids[i : min(i + window, tokens)] for i in range(0, tokens, window)]
    return [p for p in parts if len(p) > 1]
