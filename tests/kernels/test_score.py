"""Scores of tokens against NumPy in float64."""

import numpy as np
import pytest

from cachequant.kernels.score import score


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def case(tokens, vocab, noise, seed=0):
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal((tokens, vocab), dtype=np.float32) * 4 - 7
    logits = reference + rng.standard_normal((tokens, vocab), dtype=np.float32) * np.float32(noise) + np.float32(0.5)
    return logits, rng.integers(0, vocab, tokens), reference


@pytest.mark.parametrize("tokens, vocab, noise", [(1, 5, 0.1), (7, 301, 1.0), (3, 256, 4.0), (9, 50257, 0.01)])
def test_matches_float64(tokens, vocab, noise):
    logits, targets, reference = case(tokens, vocab, noise)
    got = score(logits, targets, reference)
    mine, theirs = log_softmax(logits), log_softmax(reference)
    difference = logits.astype(np.float64) - reference
    np.testing.assert_allclose(got.nll, -mine[np.arange(tokens), targets], atol=1e-6)
    np.testing.assert_allclose(got.kl, (np.exp(theirs) * (theirs - mine)).sum(1), atol=1e-6)
    np.testing.assert_array_equal(got.top1, mine.argmax(1) == theirs.argmax(1))
    five = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(got.top5, (five == reference.argmax(1)[:, None]).any(1))
    centred = np.abs(difference - difference.mean(1, keepdims=True)).mean(1)
    np.testing.assert_allclose(got.centred_error, centred, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.mean_error, np.abs(difference).mean(1), rtol=1e-5)
    np.testing.assert_allclose(got.max_error, np.abs(difference).max(1), rtol=1e-6)


def test_loss_is_the_same_alone():
    logits, targets, reference = case(6, 1000, 0.5)
    alone = score(logits, targets)
    assert alone.nll.tobytes() == score(logits, targets, reference).nll.tobytes()
    assert alone.kl is None and alone.top1 is None


def test_equal_logits_have_no_divergence():
    logits, targets, _ = case(4, 777, 1.0)
    got = score(logits, targets, logits)
    assert not got.kl.any() and not got.centred_error.any() and got.top1.all() and got.top5.all()


def test_common_shift_is_not_centred_error():
    logits, targets, _ = case(4, 777, 1.0)
    got = score(np.round(logits * 64) / np.float32(64) + np.float32(8), targets, np.round(logits * 64) / np.float32(64))
    np.testing.assert_allclose(got.mean_error, 8)
    assert not got.centred_error.any()
    np.testing.assert_allclose(got.kl, 0, atol=1e-7)


def test_ties_go_to_the_lower_id():
    logits = np.zeros((1, 8), np.float32)
    first, sixth = np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32)
    first[0, 0] = sixth[0, 5] = 1
    target = np.zeros(1, np.int64)
    assert score(logits, target, first).top1[0] and score(logits, target, first).top5[0]
    assert not score(logits, target, sixth).top1[0] and not score(logits, target, sixth).top5[0]


def test_large_logits_stay_finite():
    logits = np.array([[1e4, -1e4, 3e4]], np.float32)
    got = score(logits, np.array([0]), logits[:, ::-1].copy())
    assert got.nll[0] == 2e4 and np.isfinite(got.kl[0])
