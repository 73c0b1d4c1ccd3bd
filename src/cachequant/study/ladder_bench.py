"""Where the time of one matrix product goes: the rungs of the ladder, its stages, and from one token to many.

Runs our kernels in this process; other libraries are measured in processes of their own (`gemm_bench`). What a decoded
token would read out of memory is read out of memory here: products rotate over copies of the weights.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from cachequant import schemes
from cachequant.kernels import gemm, get_threads, ladder, pack, selfcheck, set_threads, simd
from cachequant.kernels.simd import KernelSet
from cachequant.quantize import quantize
from cachequant.study import timing

LOOP_SECONDS = 0.05
INTERPRETED = (2, 32, 64)  # rows, outputs, inputs: small, because Python needs 100,000 times as long for a product
PYTHON, TRIPLE = "triple loop in Python", "triple loop, compiled"
BLOCKED, THREADED = "blocked", "blocked, all threads"
FLOATS, SIMD = "SIMD, float32", "SIMD, "  # the latter before the name of a kernel set
PANEL = 16  # outputs that one micro-kernel makes at once


@dataclass(frozen=True)
class Rung:
    """One way to multiply: `call` makes `operations` and has to move `nbytes` in and out of memory for them."""

    call: Callable
    operations: int
    nbytes: int


def sets() -> list[KernelSet]:
    """The kernel sets of this CPU that compute right, the plainest first."""
    return [s for s in reversed(simd.available()) if not selfcheck.check(s)]


def rungs(n: int, k: int, rows: int, stream_bytes: int, repeats: int) -> dict:
    """Speed of each rung for int8 codes, (rows, k) by (n, k), float32 in and out, and of one rung in float32.

    Parameters
    ----------
    stream_bytes : each rung goes round over copies of its weights that take at least this together; 0 for one copy.

    Returns
    -------
    {rung: {median, low, high, values (billions of operations a second), "intensity" (operations a byte of weights,
    inputs and outputs)}}, bottom first. The interpreted loop runs on a product of `INTERPRETED` size, and not at all
    where a single row is asked for: it is as slow for any number of rows.
    """
    built = ({} if rows == 1 else {PYTHON: _interpreted()}) | _compiled(n, k, rows, stream_bytes)
    seconds = interleaved({name: rung.call for name, rung in built.items()}, repeats)
    return {
        name: timing.summary(1e-9 * rung.operations / s for s in seconds[name])
        | {"intensity": rung.operations / rung.nbytes}
        for name, rung in built.items()
    }


def _interpreted() -> Rung:
    few, outputs, inputs = INTERPRETED
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-127, 128, shape, np.int8) for shape in ((few, inputs), (inputs, outputs)))
    out = np.empty((few, outputs), np.int32)
    operations = 2 * few * outputs * inputs
    return Rung(lambda: ladder.triple_loop.py_func(a, b, out), operations, a.nbytes + b.nbytes + out.nbytes)


def _compiled(n: int, k: int, rows: int, stream_bytes: int) -> dict[str, Rung]:
    rng = np.random.default_rng(0)
    x, weight, out = _normal(rng, rows, k), _normal(rng, n, k), np.empty((rows, n), np.float32)
    w, threads = quantize(weight, schemes.INT8), get_threads()

    def rung(make: Callable, call: Callable, nbytes: Callable) -> Rung:
        copies = rotation(make, nbytes, stream_bytes)
        moved = nbytes(next(copies)) + x.nbytes + out.nbytes
        return Rung(lambda: call(next(copies)), 2 * rows * n * k, moved)

    def loop(kind) -> tuple[Callable, Callable, Callable]:
        make = lambda: ladder.layout(kind, w).copy()  # noqa: E731
        return make, lambda codes: ladder.linear(kind, x, w, codes), lambda codes: codes.nbytes + w.scales.nbytes

    def packed(pack: Callable, activation=None) -> Rung:
        return rung(pack, lambda m: gemm.matmul(x, m, activation, out=out), lambda m: m.nbytes)

    make, call, nbytes = loop(ladder.blocked)
    return {
        TRIPLE: rung(*loop(ladder.triple_loop)),
        BLOCKED: rung(make, _alone(call, threads), nbytes),
        THREADED: rung(make, call, nbytes),
        FLOATS: packed(lambda: gemm.pack_fp32(weight)),
        **{SIMD + s.name: packed(lambda s=s: pack.pack_codes(w, s), schemes.INT8) for s in sets()},
    }


def _alone(call: Callable, threads: int) -> Callable:
    """The same call with one thread; afterwards there are `threads` again."""

    def run(weights):
        set_threads(1)
        try:
            call(weights)
        finally:
            set_threads(threads)

    return run


def stages(n: int, k: int, rows: int, names: Iterable[str], stream_bytes: int, repeats: int) -> dict:
    """Seconds that a product spends before and after its first multiplication, for the formats in `names`.

    The SIMD kernel rescales while a sum is still in registers, so its stages cannot be timed one by one: a product with
    a single panel of outputs quantizes the same inputs and multiplies next to nothing, the rest of a whole product is
    multiplying and rescaling. The blocked rung keeps the three apart.

    Returns
    -------
    {format: {stage: seconds}}, medians; the blocked rung is called ``blocked``.
    """
    rng = np.random.default_rng(0)
    x, weight = _normal(rng, rows, k), _normal(rng, n, k)
    calls = {}
    for name in names:
        scheme = schemes.get(name)
        whole = packed_rotation(weight, scheme.weight, stream_bytes)
        panel = gemm.pack_codes(quantize(weight[:PANEL], scheme.weight))
        calls[name, "whole"] = lambda a=scheme.activation, ws=whole: gemm.matmul(x, next(ws), a)
        calls[name, "quantize"] = lambda a=scheme.activation, p=panel: gemm.matmul(x, p, a)
    w = quantize(weight, schemes.INT8)
    q, sums = quantize(x, schemes.INT8), np.empty((rows, n), np.int32)
    calls["blocked", "quantize"] = lambda: quantize(x, schemes.INT8)
    calls["blocked", "multiply"] = lambda: ladder.blocked(q.codes, w.codes, sums)
    calls["blocked", "rescale"] = lambda: ladder.rescale(sums, q, w)
    found = {key: timing.median(values) for key, values in interleaved(calls, repeats).items()}
    result = {"blocked": {stage: found["blocked", stage] for stage in ("quantize", "multiply", "rescale")}}
    for name in names:
        first = min(found[name, "quantize"], found[name, "whole"])
        result[name] = {"quantize": first, "multiply and rescale": found[name, "whole"] - first}
    return result


def placement(n: int, k: int, rows: Iterable[int], names: Iterable[str], stream_bytes: int, repeats: int) -> list[dict]:
    """Points of the roofline: one product for several numbers of tokens, weights out of memory.

    Returns
    -------
    [{arm, tokens, intensity, gops}]; intensity is operations a byte of weights, inputs and outputs.
    """
    rng, calls, traffic = np.random.default_rng(0), {}, {}
    weight = _normal(rng, n, k)
    for name in names:
        scheme = schemes.get(name)
        copies = packed_rotation(weight, scheme.weight, stream_bytes)
        for m in rows:
            x, out = _normal(rng, m, k), np.empty((m, n), np.float32)
            calls[name, m] = lambda x=x, ws=copies, a=scheme.activation, out=out: gemm.matmul(x, next(ws), a, out=out)
            traffic[name, m] = next(copies).nbytes + x.nbytes + out.nbytes
    found = interleaved(calls, repeats)
    return [
        {
            "arm": name,
            "tokens": m,
            "intensity": 2 * m * n * k / traffic[name, m],
            "gops": 2e-9 * m * n * k / timing.median(values),
        }
        for (name, m), values in found.items()
    ]


def rotation(make: Callable, nbytes: Callable[..., int], stream_bytes: int) -> Iterator:
    """Endless turns over copies of a matrix, made by `make`, that take at least `stream_bytes` together."""
    copies = [make()]
    while sum(map(nbytes, copies)) < stream_bytes:
        copies.append(make())
    return cycle(copies)


def packed_rotation(weight: np.ndarray, quantizer, stream_bytes: int) -> Iterator:
    """`rotation` over a float32 matrix packed as it is, or quantized."""
    codes = quantize(weight, quantizer) if quantizer else None
    make = lambda: gemm.pack_codes(codes) if quantizer else gemm.pack_fp32(weight)  # noqa: E731
    return rotation(make, lambda m: m.nbytes, stream_bytes)


def interleaved(calls: dict[object, Callable], repeats: int) -> dict[object, list[float]]:
    """Seconds of each call in each round; all calls once a round, after one that is not counted."""
    for call in calls.values():
        call()
    rounds = [{key: _seconds(call) for key, call in calls.items()} for _ in range(repeats)]
    return {key: [r[key] for r in rounds] for key in calls}


def _seconds(call: Callable) -> float:
    """Mean over as many calls as fit LOOP_SECONDS, at least one."""
    calls, begin = 0, time.perf_counter()
    while not calls or time.perf_counter() - begin < LOOP_SECONDS:
        call()
        calls += 1
    return (time.perf_counter() - begin) / calls


def _normal(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    return rng.standard_normal((rows, k)).astype(np.float32)
