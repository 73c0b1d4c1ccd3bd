"""One arm in one process: requests as JSON lines on standard input, replies on standard output.

Thread pools of different libraries fight when they share a process, so every arm has its own
(`python -m cachequant.study.worker`). A worker blocks on its input between requests; whatever a library prints goes to
standard error, so that it cannot break the protocol.
"""

import gc
import json
import os
import sys
import time
from dataclasses import asdict

import numpy as np

from cachequant.study import arms, rss


class Server:
    """Answers requests; `open` comes first and decides what the others mean."""

    def __init__(self):
        self._work = None

    def handle(self, request: dict) -> dict:
        """The reply to one request; its `do` names the method."""
        what = request.pop("do")
        if what == "open":
            return self._open(**request)
        if what == "memory":
            return rss.memory()
        return getattr(self._work, what)(**request)

    def _open(self, kind: str, **how) -> dict:
        begin = time.perf_counter()
        self._work = _work(kind)(**how)
        gc.collect()
        gc.freeze()  # so that a collection in the middle of a timing has little to look at
        return {"seconds": time.perf_counter() - begin, **self._work.facts(), **rss.memory()}


def _work(kind: str) -> type:
    """What a kind of benchmark runs in its workers; a torch arm never imports numba, nor ours torch."""
    if kind == "decode":
        return DecodeWork
    if kind == "convert":
        return ConvertWork
    if kind in ("footprint", "quantize"):
        from cachequant.study import footprint

        return footprint.FootprintWork if kind == "footprint" else footprint.QuantizeWork
    if kind == "gemm":
        from cachequant.study.gemm_arms import GemmWork

        return GemmWork
    if kind == "peak":
        from cachequant.study.peaks import PeakWork

        return PeakWork
    if kind == "prefill":
        from cachequant.study.prefill_arms import PrefillWork

        return PrefillWork
    if kind == "attention":
        from cachequant.study.attention_arms import AttentionWork

        return AttentionWork
    if kind == "context":
        from cachequant.study.context_bench import ContextWork

        return ContextWork
    if kind == "caches":
        from cachequant.study.hf_cache_work import CacheWork

        return CacheWork
    if kind == "session":
        from cachequant.study.session_memory import SessionWork

        return SessionWork
    from cachequant.study.reading import ReadWork

    return ReadWork


class DecodeWork:
    """A model that generates."""

    def __init__(self, arm: str, model: str, threads: int):
        self._engine = arms.get(arm).build(model, threads)

    def facts(self) -> dict:
        engine = getattr(self._engine, "engine", None)
        return {"weight_bytes": self._engine.weight_bytes, **({"engine": engine} if engine else {})}

    def logits(self, ids: list[int], forced: list[int]) -> dict:
        """Logits of the last position after a prompt, and after each token that is put behind it."""
        rows = [np.asarray(self._engine.start(ids)).reshape(-1).tolist()]
        for token in forced:
            rows.append(np.asarray(self._engine.step(token)).reshape(-1).tolist())
        return {"logits": rows}

    def generate(self, ids: list[int], new: int, limit_seconds: float | None = None) -> dict:
        run = arms.generate(self._engine, ids, new, limit_seconds)
        return asdict(run)


class ConvertWork:
    """Our weights in another engine's format; what the conversion imports and allocates ends with the process."""

    def __init__(self, model: str, form: str):
        from cachequant.assets import models
        from cachequant.study import peer_files

        peer_files.make(models.resolve(model), form)

    def facts(self) -> dict:
        return {}


def main() -> None:
    """Serve until standard input closes."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf8")
    os.dup2(2, 1)
    server = Server()
    for line in sys.stdin:
        try:
            reply = {"ok": True, **server.handle(json.loads(line))}
        except Exception as error:  # the parent decides whether an arm that fails stops the benchmark
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
