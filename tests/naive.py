"""Slow, obvious NumPy truth for the kernels: the same operations in the same order, so results compare bit for bit."""

import numpy as np


def fma(a, b, c):
    """a * b + c with one rounding to float32.

    The product of two float32 is exact in float64; the sum is rounded to odd there, which makes the second rounding
    innocuous (Boldo & Melquiond 2008, theorem 1).
    """
    product = np.float64(a) * np.float64(b)
    total = product + np.float64(c)
    back = total - product
    error = (product - (total - back)) + (np.float64(c) - back)
    odd = total.view(np.int64) & 1
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & (odd == 0), np.nextafter(total, toward), total).astype(np.float32)


def _finished(total, bias, residual):
    if bias is not None:
        total = total + bias
    return total if residual is None else total + residual


def matmul_fp32(x, w, bias=None, residual=None):
    """(M, K) x (N, K): one chain of fused multiply-adds per output, over ascending k."""
    total = np.zeros((len(x), len(w)), np.float32)
    for k in range(x.shape[1]):
        total = fma(x[:, k, None], w[None, :, k], total)
    return _finished(total, bias, residual)


def matmul_codes(x_codes, x_steps, w_codes, w_steps, block, bias=None, residual=None):
    """Exact integer sums per block, scaled and folded over ascending blocks; steps are (M, B) and (N, B)."""
    k = x_codes.shape[1]
    total = np.zeros((len(x_codes), len(w_codes)), np.float32)
    for b, start in enumerate(range(0, k, block)):
        part = slice(start, start + block)
        sums = (x_codes[:, part].astype(np.int64) @ w_codes[:, part].astype(np.int64).T).astype(np.float32)
        scale = x_steps[:, b, None] * w_steps[None, :, b]
        total = sums * scale if block >= k else fma(sums, scale, total)
    return _finished(total, bias, residual)


def matmul_weights(x, w_codes, w_steps, block, bias=None, residual=None):
    """Float32 inputs times codes: a chain of fma per block, scaled and folded over ascending blocks."""
    k = x.shape[1]
    total = np.zeros((len(x), len(w_codes)), np.float32)
    for b, start in enumerate(range(0, k, block)):
        part = slice(start, start + block)
        sums = matmul_fp32(x[:, part], w_codes[:, part].astype(np.float32))
        total = sums * w_steps[None, :, b] if block >= k else fma(sums, w_steps[None, :, b], total)
    return _finished(total, bias, residual)


class NaivePrefixCache:
    """What a prefix cache of pages of `page` tokens may hold: token strings, each without a limit."""

    def __init__(self, page: int = 32):
        self.page, self.strings = page, set()

    def insert(self, ids):
        ids = tuple(ids)
        self.strings |= {ids[:end] for end in (*range(self.page, len(ids), self.page), len(ids)) if end}

    def match(self, ids):
        """Longest prefix that `ids` shares with a string, tokens compared one by one."""
        best = 0
        for string in self.strings:
            shared = 0
            while shared < min(len(string), len(ids)) and string[shared] == ids[shared]:
                shared += 1
            best = max(best, shared)
        return best

    def keep(self, strings):
        """Forget what is not in `strings`, whole or at the beginning of one of them."""
        self.strings = {s for s in self.strings if any(t[: len(s)] == s for t in strings)}
