"""Where the time of one matrix product goes: the rungs of the ladder, its stages, and from one token to many.

Runs our kernels in this process; other libraries are measured in processes of their own (`gemm_bench`). What a decoded
token would read out of memory is read out of memory here: products rotate over copies of the weights.
"""

import time
from collections.abc import Callable, Iterable
from itertools import cycle

import numpy as np

from cachequant import schemes
from cachequant.kernels import gemm, ladder
from cachequant.quantize import quantize
from cachequant.study import timing

LOOP_SECONDS = 0.05
INTERPRETED = (2, 32, 64)  # rows, outputs, inputs: small, because Python needs 100,000 times as long for a product
PANEL = 16  # outputs that one micro-kernel makes at once


def rungs(n: int, k: int, rows: int, repeats: int) -> dict:
    """Billions of operations a second of each rung for int8 codes, (rows, k) by (n, k), float32 in and out.

    Returns
    -------
    {rung: summary}, bottom first; the interpreted loop runs on a product of `INTERPRETED` size.
    """
    rng = np.random.default_rng(0)
    x, w = _normal(rng, rows, k), quantize(_normal(rng, n, k), schemes.INT8)
    packed, strided = gemm.pack_codes(w), ladder.layout(ladder.triple_loop, w)
    few, outputs, inputs = INTERPRETED
    a, b, out = w.codes[:few, :inputs], strided[:inputs, :outputs], np.empty((few, outputs), np.int32)

    calls = {
        "triple loop in Python": (lambda: ladder.triple_loop.py_func(a, b, out), few * outputs * inputs),
        "triple loop, compiled": (lambda: ladder.linear(ladder.triple_loop, x, w, strided), rows * n * k),
        "blocked, all threads": (lambda: ladder.linear(ladder.blocked, x, w, w.codes), rows * n * k),
        "SIMD, all threads": (lambda: gemm.matmul(x, packed, schemes.INT8), rows * n * k),
    }
    seconds = interleaved({name: call for name, (call, _) in calls.items()}, repeats)
    return {name: timing.summary(2e-9 * calls[name][1] / s for s in values) for name, values in seconds.items()}


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
        whole = rotation(weight, scheme.weight, stream_bytes)
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
        copies = rotation(weight, scheme.weight, stream_bytes)
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


def rotation(weight: np.ndarray, quantizer, stream_bytes: int):
    """Endless turns over packed copies of a matrix that take at least `stream_bytes` together (0: the same one)."""

    def pack():
        return gemm.pack_codes(quantize(weight, quantizer)) if quantizer else gemm.pack_fp32(weight)

    copies = [pack()]
    while sum(c.nbytes for c in copies) < stream_bytes:
        copies.append(pack())
    return cycle(copies)


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
