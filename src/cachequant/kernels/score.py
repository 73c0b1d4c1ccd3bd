"""What an evaluation asks of logits: loss, divergence, agreement and error of every token, in one call.

Sums over the vocabulary run in float32 over blocks of 256 and in float64 over blocks. Kernels check nothing.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit, prange

from cachequant.kernels.folds import row_max, row_sum
from cachequant.kernels.ir import exp

BLOCK = 256


@dataclass(frozen=True)
class TokenScores:
    """Per-token results, each (T,); all but `nll` are None when there was no reference.

    Attributes
    ----------
    nll : float64, -log p(target), nats.
    kl : float64, KL(reference || logits), nats.
    top1 : bool, same arg max (ties go to the lower id).
    top5 : bool, the reference's arg max is among the five best (ties go to the lower id).
    centred_error : float64, mean over the vocabulary of |difference - mean difference|: softmax ignores a common shift.
    mean_error, max_error : float64, mean and largest |difference| as it is.
    """

    nll: np.ndarray
    kl: np.ndarray | None = None
    top1: np.ndarray | None = None
    top5: np.ndarray | None = None
    centred_error: np.ndarray | None = None
    mean_error: np.ndarray | None = None
    max_error: np.ndarray | None = None


@njit(error_model="numpy", cache=True)
def _shifted_exp(x, top, out):
    for i in range(x.size):
        out[i] = exp(x[i] - top)


@njit(error_model="numpy", cache=True)
def _exp_sum(x, top, out):
    """Sum of e^(x - top), float64; `out` keeps the terms, or only the last block of them."""
    total = 0.0
    for i in range(0, x.size, BLOCK):
        part = x[i : i + BLOCK]
        terms = out[i : i + BLOCK] if out.size >= x.size else out
        _shifted_exp(part, top, terms)
        total += row_sum(terms.ctypes.data, part.size)
    return total


@njit(error_model="numpy", cache=True)
def _first(x, value):
    """Lowest index of `value`, the largest of x."""
    for start in range(0, x.size, BLOCK):
        part = x[start : start + BLOCK]
        if row_max(part.ctypes.data, part.size) == value:
            for i in range(part.size):
                if part[i] == value:
                    return start + i
    return 0


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def _losses(logits, targets, nll):
    for t in prange(logits.shape[0]):
        x, block = logits[t], np.empty(BLOCK, np.float32)
        top = row_max(x.ctypes.data, x.size)
        nll[t] = np.log(_exp_sum(x, top, block)) + np.float64(top) - x[targets[t]]


@njit(error_model="numpy", cache=True)
def _difference(x, y, out):
    for i in range(x.size):
        out[i] = x[i] - y[i]


@njit(error_model="numpy", cache=True)
def _absolute(x, shift, out):
    for i in range(x.size):
        out[i] = abs(x[i] - shift)


@njit(error_model="numpy", cache=True)
def _weigh(x, weights, out):
    for i in range(x.size):
        out[i] = weights[i] * x[i]


@njit(error_model="numpy", cache=True)
def _compare(x, y, target, out):
    """One row: x the logits, y the reference's."""
    n, block = x.size, np.empty(BLOCK, np.float32)
    delta, weights = np.empty(n, np.float32), np.empty(n, np.float32)
    top, best = row_max(x.ctypes.data, n), row_max(y.ctypes.data, n)
    mass = _exp_sum(y, best, weights)
    loss = np.log(_exp_sum(x, top, block)) + np.float64(top)
    base = np.log(mass) + np.float64(best)
    _difference(x, y, delta)
    shift = 0.0
    for i in range(0, n, BLOCK):
        part = delta[i : i + BLOCK]
        shift += row_sum(part.ctypes.data, part.size)
    shift /= n
    divergence = raw = centred = largest = 0.0
    for i in range(0, n, BLOCK):
        part = delta[i : i + BLOCK]
        _weigh(part, weights[i : i + BLOCK], block)
        divergence -= row_sum(block.ctypes.data, part.size)
        _absolute(part, np.float32(0), block)
        raw += row_sum(block.ctypes.data, part.size)
        largest = max(largest, row_max(block.ctypes.data, part.size))
        _absolute(part, np.float32(shift), block)
        centred += row_sum(block.ctypes.data, part.size)
    choice, rank = _first(y, best), 0
    for i in range(n):
        rank += (x[i] > x[choice]) | ((x[i] == x[choice]) & (i < choice))
    out[0] = loss - x[target]
    out[1] = max(divergence / mass + loss - base, 0.0)
    out[2] = _first(x, top) == choice
    out[3] = rank < 5
    out[4], out[5], out[6] = centred / n, raw / n, largest


@njit(error_model="numpy", cache=True, nogil=True, parallel=True)
def _comparisons(logits, targets, reference, out):
    for t in prange(logits.shape[0]):
        _compare(logits[t], reference[t], targets[t], out[t])


def score(logits: np.ndarray, targets: np.ndarray, reference: np.ndarray | None = None) -> TokenScores:
    """Score predictions of the next token, alone or against another model's on the same tokens.

    Parameters
    ----------
    logits, reference : (T, V) float32, contiguous.
    targets : (T,) int64, the tokens that came.
    """
    if reference is None:
        nll = np.empty(len(logits))
        _losses(logits, targets, nll)
        return TokenScores(nll)
    out = np.empty((len(logits), 7))
    _comparisons(logits, targets, reference, out)
    nll, kl, top1, top5, centred, mean, largest = out.T.copy()
    return TokenScores(nll, kl, top1.astype(bool), top5.astype(bool), centred, mean, largest)
