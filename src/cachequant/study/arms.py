"""The arms of a decode benchmark: how each one is built, and the loop that times them all alike.

An engine sees token ids and gives the logits of the last position: `start` runs a whole prompt, `step` one more token,
`choose` takes the arg max outside the timers. Tokenizing is outside too, and no arm computes logits that nobody reads.
An engine that cannot be run token by token has a `generate` of its own, which is then timed as a whole by the engine.
Engines are built inside a worker process (`cachequant.study.worker`), one process an arm.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cachequant import schemes
from cachequant.checkpoint.layout import require_storable
from cachequant.errors import InputError
from cachequant.study import variants
from cachequant.study.timing import GenerationTiming


class Engine(Protocol):
    """One model, ready to run at batch 1."""

    weight_bytes: int | None

    def start(self, ids: list[int]) -> Any:
        """Forget everything, run a prompt, return the logits of its last position."""

    def step(self, token: int) -> Any:
        """Run one more token, return its logits."""

    def choose(self, logits: Any) -> int:
        """The greedy next token."""


class Growing(Engine, Protocol):
    """An engine that can put tokens behind those that it has, and forget the newest."""

    def grow(self, ids: list[int]) -> None:
        """Run tokens behind what is there."""

    def rewind(self, tokens: int) -> None:
        """Keep the first `tokens` tokens."""

    def held_bytes(self) -> int:
        """Bytes of keys and values."""


class Stopped(Exception):
    """Raised inside a forward pass that ran out of time: `done` of `total` layers were finished."""

    def __init__(self, done: int, total: int):
        super().__init__(f"stopped after {done} of {total} layers")
        self.done, self.total = done, total


@dataclass(frozen=True)
class Arm:
    """One arm: its name in results, and how a worker builds it.

    build : (model name, threads) -> Engine.
    limit_seconds : arms that are hopeless on most CPUs run once, and are stopped after this time.
    settle_seconds : how long its idle threads may still spin after a run.
    needs : module of `peers.MODULES` without which it cannot run.
    form : of `peer_files.FORMATS` that it reads.
    grows : whether its engine is one of `Growing`.
    """

    name: str
    build: Callable[[str, int], Engine]
    limit_seconds: float | None = None
    settle_seconds: float = 0.02
    needs: str | None = None
    form: str | None = None
    grows: bool = False

    @property
    def slow(self) -> bool:
        return self.limit_seconds is not None


class Ours:
    """The decoder of this library under one scheme and page format."""

    def __init__(self, model: str, name: str, threads: int):
        import cachequant

        chosen = variants.get(name)
        self._model = cachequant.load(
            model, chosen.scheme, threads=threads, kv=chosen.kv, calibration=chosen.calibration
        )
        self._session = None
        self.weight_bytes = self._model.weight_bytes

    def start(self, ids: list[int]) -> np.ndarray:
        if self._session is not None:
            self._session.close()
        self._session = self.session()
        return self._session.extend(ids)

    def session(self):
        """An empty session of the model."""
        return self._model.session()

    def step(self, token: int) -> np.ndarray:
        return self._session.extend([token])

    def grow(self, ids: list[int]) -> None:
        if self._session is None:
            self._session = self.session()
        self._session.extend(ids, logits="none")

    def rewind(self, tokens: int) -> None:
        self._session.rewind(tokens)

    def held_bytes(self) -> int:
        return self._session.nbytes

    def choose(self, logits: np.ndarray) -> int:
        return int(logits.argmax())


class Loaded(Ours):
    """An arm around a model that is there already."""

    def __init__(self, model):
        self._model, self._session, self.weight_bytes = model, None, model.weight_bytes


def _transformers(dtype: str, int8: bool = False, scheme: str | None = None) -> Callable[[str, int], Engine]:
    def build(model: str, threads: int) -> Engine:
        from cachequant.study.torch_engine import Transformers

        return Transformers(model, threads, dtype, int8, scheme)

    return build


def _llamacpp(kind: str, pages: str | None = None) -> Arm:
    def build(model: str, threads: int) -> Engine:
        from cachequant.study.llamacpp_engine import LlamaCpp

        return LlamaCpp(model, threads, kind, pages)

    name = f"llamacpp-{kind}" + (f"/{pages}" if pages else "")
    return Arm(name, build, needs="llama_cpp", form=f"gguf-{kind}", grows=True)


def _ctranslate2(name: str, kind: str) -> Arm:
    def build(model: str, threads: int) -> Engine:
        from cachequant.study.ctranslate2_engine import CTranslate2

        return CTranslate2(model, threads, kind)

    return Arm(f"ctranslate2-{name}", build, needs="ctranslate2", form="ctranslate2")


SLOW_SECONDS = 30.0
PEERS = {
    arm.name: arm
    for arm in (
        Arm("transformers-fp32", _transformers("float32")),
        Arm("transformers-bf16", _transformers("bfloat16"), limit_seconds=SLOW_SECONDS),
        Arm("transformers-fp16", _transformers("float16"), limit_seconds=SLOW_SECONDS),
        Arm("torch-int8", _transformers("float32", int8=True)),
        _llamacpp("f32"),
        _llamacpp("q8_0"),
        *(_llamacpp("q8_0", pages) for pages in ("f16", "q8_0", "q4_0")),
        _llamacpp("export"),
        _ctranslate2("fp32", "float32"),
        _ctranslate2("int8", "int8"),
    )
}
PLUGIN = "hf-"  # and a scheme: our layers in transformers' model
DEFAULT = ("transformers-fp32", "torch-int8", "fp32", "bfp8", "int8", "int8+head")


def get(name: str) -> Arm:
    """An arm by name: a peer, any scheme of this library, with pages as in ``int8/k4v4``, or ``hf-`` and a scheme.

    Raises
    ------
    InputError : an unknown name; the message lists the known ones.
    """
    if name in PEERS:
        return PEERS[name]
    if name.startswith(("hf-kv-", "hf-quanto", "hf-hqq")):
        from cachequant.study import hf_cache_arms

        return hf_cache_arms.get(name)
    scheme = name.removeprefix(PLUGIN)
    try:
        if scheme != name:
            require_storable(schemes.get(scheme))
            return Arm(name, _transformers("float32", scheme=scheme))
        variants.get(name)
    except InputError as error:
        known = ", ".join((*PEERS, PLUGIN + "SCHEME"))
        raise InputError(f"unknown arm {name!r}: not one of {known}, and {error}") from None
    return Arm(name, lambda model, threads: Ours(model, name, threads), grows=True)


@dataclass
class Run:
    """One timed generation.

    timing : seconds of each forward pass that was finished; `prefill_seconds` also when the prompt was cut short.
    ids : greedy tokens.
    cache_bytes : of keys and values of the prompt, from an engine that knows it.
    layers : (done, total) of a prefill that was stopped inside the model, else None.
    complete : whether all tokens were made.
    """

    timing: GenerationTiming
    ids: list[int]
    layers: tuple[int, int] | None = None
    complete: bool = True
    cache_bytes: int | None = None


def generate(engine: Engine, ids: list[int], new: int, limit_seconds: float | None = None) -> Run:
    """Greedy generation of `new` tokens (the first one by the prefill), each forward pass timed alone.

    End-of-text tokens are generated like others, so that every arm does the same work. With a limit, an engine that has
    `deadline` is stopped between layers, the others between tokens. One that has `reserve` makes room before the clock
    starts.
    """
    if hasattr(engine, "generate"):
        return engine.generate(ids, new)
    if hasattr(engine, "reserve"):
        engine.reserve(len(ids) + new)
    clock, begin = time.perf_counter, time.perf_counter()
    if limit_seconds is not None and hasattr(engine, "deadline"):
        engine.deadline = begin + limit_seconds
    timing = GenerationTiming(0.0, len(ids))
    try:
        tick = clock()
        logits = engine.start(ids)
        timing.prefill_seconds = clock() - tick
    except Stopped as stop:
        timing.prefill_seconds = clock() - tick
        return Run(timing, [], (stop.done, stop.total), complete=False)
    held = engine.cache_bytes() if hasattr(engine, "cache_bytes") else None
    tokens = [engine.choose(logits)]
    while len(tokens) < new:
        if limit_seconds is not None and clock() - begin > limit_seconds:
            return Run(timing, tokens, complete=False)
        try:
            tick = clock()
            logits = engine.step(tokens[-1])
            timing.token_seconds.append(clock() - tick)
        except Stopped:
            return Run(timing, tokens, complete=False)
        tokens.append(engine.choose(logits))
    return Run(timing, tokens, cache_bytes=held)
