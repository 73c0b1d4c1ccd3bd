"""The worker's side of `hf_cache_bench`: several caches behind one transformers model with float32 layers."""

import time
from collections.abc import Sequence
from contextlib import contextmanager

import numpy as np
import torch

from cachequant.errors import AssetError
from cachequant.hf import attach, detach
from cachequant.kv.formats import PAGE
from cachequant.study import hf_cache_arms
from cachequant.study.hf_cache_arms import Kind
from cachequant.study.torch_engine import build

OVER_CODES = " (prompt over codes)"  # behind the name of an arm: its prompt has read codes too
STEPS = 4  # decoded tokens a round
KEPT = ("nll", "kl", "top1", "top5")


class CacheWork:
    """One model and the caches that take turns behind it.

    Parameters
    ----------
    model, threads : as for every arm.
    arms : of `hf_cache_arms`; their layers' scheme does not count.
    """

    def __init__(self, model: str, threads: int, arms: Sequence[str]):
        from cachequant import kernels
        from cachequant.assets import models

        asset = models.resolve(model)
        self._shape, self._model = asset.config, build(asset.config, asset.weights, torch.float32)
        torch.set_num_threads(threads)
        kernels.set_threads(threads)
        self._kinds, self._basis, self.missing, self._caches = {}, {}, {}, {}
        for name in arms:
            kind = hf_cache_arms.kind(name)
            try:
                kind.require()
            except AssetError as error:
                self.missing[name] = str(error)
                continue
            self._kinds[name] = kind
            self._basis[name] = kind.basis(model) if kind.kv else "none"
        coded = next((name for name, kind in self._kinds.items() if kind.kv and kind.kv.compressed), None)
        if coded:
            self._kinds[coded + OVER_CODES], self._basis[coded + OVER_CODES] = self._kinds[coded], self._basis[coded]

    def facts(self) -> dict:
        return {"missing": self.missing, "names": list(self._kinds)}

    def window(self, ids: list[int], context: int) -> dict:
        """{arm: figures} of the tokens behind `context` ones.

        The prompt runs once, with keys and values as floats, and every cache gets them as its first call. The tokens
        behind it come in pieces of a page, which is what single steps compute, only faster. The figures of a token
        belong to the prediction behind it: `nll`, `kl`, `top1`, `top5` are lists, `fill_seconds`, `code_bits` (bits
        a value after the prompt, leaving out what is exact), `bits` (a value of the whole cache in the end, what is
        allocated but not used yet included), `basis_bytes` (of our calibration, which all caches of a model share) and
        `exact` (tokens that a scored one saw as floats, itself included, the mean) numbers.
        """
        from cachequant.kernels.score import score

        dense = self._forward(ids[:context], Kind().make(self._model.config), last=True)[1]
        scored, targets = ids[context:-1], np.array(ids[context + 1 :], np.int64)
        pieces = [scored[i : i + PAGE] for i in range(0, len(scored), PAGE)]
        truth, found, self._caches = None, {}, {}
        with torch.inference_mode():
            for name, kind in self._kinds.items():
                with self._reading(name):
                    cache, seconds = self._filled(name, ids[:context], dense)
                    code_bits, exact, rows = self._code_bits(kind, cache), [], []
                    for piece in pieces:
                        exact += exact_rows(kind, cache, len(piece))
                        rows.append(self._forward(piece, cache)[0])
                logits = np.concatenate(rows)
                basis_bytes = hf_cache_arms.held_bytes(kind.make(self._model.config, self._basis[name]))
                truth = logits if truth is None else truth
                scores = score(logits, targets, truth)
                found[name] = {key: getattr(scores, key).astype(float).tolist() for key in KEPT} | {
                    "fill_seconds": seconds,
                    "code_bits": code_bits,
                    "bits": 8 * (hf_cache_arms.held_bytes(cache) - basis_bytes) / self._values(cache),
                    "basis_bytes": basis_bytes,
                    "exact": float(np.mean(exact)),
                }
                self._caches[name] = cache
        return {"arms": found}

    def steps(self, arm: str, token: int) -> dict:
        """Seconds a decoded token behind the last window, of one arm; a first token is not timed."""
        with self._reading(arm):
            self._forward([token], self._caches[arm])
            begin = time.perf_counter()
            for _ in range(STEPS):
                self._forward([token], self._caches[arm])
        return {"seconds": (time.perf_counter() - begin) / STEPS}

    def _filled(self, name: str, prompt: list[int], dense):
        """The cache of an arm after the prompt, and the seconds that its layers took to store it, or None."""
        cache = self._kinds[name].make(self._model.config, self._basis[name])
        if name.endswith(OVER_CODES):
            self._forward(prompt, cache, last=True)
            return cache, None
        begin = time.perf_counter()
        for i, layer in enumerate(dense.layers):
            cache.update(layer.keys.contiguous(), layer.values.contiguous(), i)
        return cache, time.perf_counter() - begin

    def _forward(self, ids: list[int], cache, last: bool = False):
        with torch.inference_mode():
            out = self._model(torch.tensor([ids]), cache=cache, use_cache=True, logits_to_keep=int(last))
        return np.ascontiguousarray(out.logits[0].numpy(), np.float32), out.cache

    @contextmanager
    def _reading(self, name: str):
        """The model attached for our coded pages, and as it was for other caches."""
        kind = self._kinds[name]
        if not kind.kv:
            yield
            return
        attach(self._model, kind.kv, self._basis[name])
        try:
            yield
        finally:
            detach(self._model)

    def _values(self, cache) -> int:
        config = self._shape
        return 2 * config.layers * config.kv_heads * config.head_dim * cache.get_seq_length()

    def _code_bits(self, kind: Kind, cache) -> float:
        if kind.kv:
            return kind.kv.bits_per_value(self._shape.layers, self._shape.head_dim)
        if not kind.backend:
            return 32.0
        held = [[layer._quantized_keys, layer._quantized_values] for layer in cache.layers]
        return 8 * hf_cache_arms.tensor_bytes(held) / self._values(cache)


def exact_rows(kind: Kind, cache, tokens: int) -> list[int]:
    """Of each of the next tokens, a piece that begins with a page: how many it sees as floats, itself included."""
    before = cache.get_seq_length()
    if kind.kv and kind.kv.compressed:
        before = PAGE * kind.kv.exact_pages
    elif kind.backend:
        keys = cache.layers[0].keys
        before = keys.shape[-2] if keys.dim() == 4 else 0
    return [before + i + 1 for i in range(tokens)]
