"""Reading memory and nothing else: what a matrix-vector product could reach if arithmetic were free."""

import time

import numpy as np
from numba import njit, prange

from cachequant import kernels

SECONDS = 0.15


@njit(parallel=True, cache=True)
def read(x, sums):
    """Sum int64 values, a range and a sum a thread.

    A thread reads at eight places at once, because one place alone does not saturate memory; integer sums may be
    vectorized by the compiler.
    """
    part = len(x) // len(sums)
    for p in prange(len(sums)):
        n = part // 8
        v = x[p * part : (p + 1) * part]
        a, b, c, d = v[:n], v[n : 2 * n], v[2 * n : 3 * n], v[3 * n : 4 * n]
        e, f, g, h = v[4 * n : 5 * n], v[5 * n : 6 * n], v[6 * n : 7 * n], v[7 * n : 8 * n]
        s = t = u = w = np.int64(0)
        for i in range(n):
            s += a[i] + e[i]
            t += b[i] + f[i]
            u += c[i] + g[i]
            w += d[i] + h[i]
        sums[p] = s + t + u + w


class ReadWork:
    """Reads one buffer over and over; runs inside a worker.

    Parameters
    ----------
    threads : that read.
    size : bytes, several times the last-level cache.
    """

    def __init__(self, threads: int, size: int):
        self._buffer = np.ones(size // 8, np.int64)
        self._sums = np.zeros(kernels.set_threads(threads), np.int64)
        read(self._buffer, self._sums)

    def facts(self) -> dict:
        return {"bytes": self._buffer.nbytes}

    def read(self) -> dict:
        """GB/s of passes over the buffer, for SECONDS."""
        passes, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < SECONDS:
            read(self._buffer, self._sums)
            passes += 1
        return {"gb_s": passes * self._buffer.nbytes / spent / 1e9}
