"""CTranslate2 as an arm; batch 1, logits of the last position.

It has no call for a single step: a whole generation is one call, which reports each token as it is made. The times
between these reports are the times of the tokens; they include the arg max, which the other arms have outside.
"""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from cachequant.study import peer_files, peers, traffic
from cachequant.study.arms import Run
from cachequant.study.timing import GenerationTiming

SCHEMES = {"float32": "fp32", "int8": "int8+head"}  # ours that read as much: a float32 scale a row, the head in codes


class CTranslate2:
    """A model that CTranslate2's converter made from our weights.

    Parameters
    ----------
    model : a model's name.
    threads : of the one generation that runs at a time.
    kind : compute type, ``float32`` or ``int8``: every matrix rounded with one scale a row, inputs too.
    """

    def __init__(self, model: str, threads: int, kind: str):
        from cachequant.assets import models

        peers.require("ctranslate2")
        import ctranslate2

        asset = models.resolve(model)
        folder = peer_files.make(asset, "ctranslate2")
        ctranslate2.set_log_level(logging.INFO)  # it says what it runs with when the first model is loaded
        with captured_stderr() as said:
            self._model = ctranslate2.Generator(str(folder), device="cpu", compute_type=kind, intra_threads=threads)
        ctranslate2.set_log_level(logging.WARNING)
        self.weight_bytes = traffic.weight_bytes(asset.config, SCHEMES[kind])["total"]
        self.engine = {"name": "CTranslate2", "version": ctranslate2.__version__, "build": built("".join(said))}
        self._ids: list[int] = []

    def generate(self, ids: list[int], new: int) -> Run:
        """Greedy generation of `new` tokens; the first one ends the prefill."""
        stamps = [time.perf_counter()]

        def made(step) -> bool:
            stamps.append(time.perf_counter())
            return False  # go on

        found = self._call(ids, new, callback=made)
        first, *others = (after - before for before, after in pairwise(stamps))
        return Run(GenerationTiming(first, len(ids), others), found.sequences_ids[0])

    def start(self, ids: list[int]) -> np.ndarray:
        self._ids = list(ids)
        found = self._call(self._ids, 1, return_logits_vocab=True)
        return np.asarray(found.logits[0][0])

    def step(self, token: int) -> np.ndarray:
        """Logits after one more token, by running all of them again: for checks, not for timing."""
        return self.start([*self._ids, token])

    def choose(self, logits: np.ndarray) -> int:
        return int(logits.argmax())

    def _call(self, ids: list[int], new: int, **how):
        """One generation in which no token ends the text, and the whole prompt goes in at once."""
        names = [str(token) for token in ids]
        length = {"min_length": new, "max_length": new, "end_token": []}
        return self._model.generate_batch([names], include_prompt_in_result=False, **length, **how)[0]


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Yields a list that holds, after the block, what was written to the process's standard error inside it."""
    said: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


def built(log: str) -> str:
    """Processor, instruction set and libraries out of CTranslate2's log, up to where it names the model's folder.

    >>> built("[time] [ctranslate2] [thread 7] [info] CPU: X (AVX2=true)\\n[time] [info]  - SGEMM backend: DNNL\\n")
    'CPU: X (AVX2=true), SGEMM backend: DNNL'
    """
    lines = [line.rpartition("[info]")[2].strip(" -") for line in log.partition("Loaded model")[0].splitlines()]
    return ", ".join(line for line in lines if ": " in line and not line.startswith("["))
