"""Token choice: ties, filters against transformers' logits processors, refusals."""

import numpy as np
import pytest

from cachequant.decoder.sampling import Sampler, probabilities
from cachequant.errors import InputError, NumericsError


def test_ties_go_to_the_lower_id(rng):
    assert Sampler().choose(np.array([0, 3, 3, 1], np.float32), rng) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_logits_are_refused(bad, rng):
    with pytest.raises(NumericsError, match="token 2"):
        Sampler().choose(np.array([0, 1, bad], np.float32), rng)


@pytest.mark.parametrize("seed", range(40))
def test_probabilities_equal_the_logits_processors_of_transformers(seed):
    torch = pytest.importorskip("torch")
    from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal(int(rng.integers(2, 300))) * 4, int(rng.integers(1, 6))).astype(np.float32)
    for temperature in (0.3, 1.0, 1.7):
        for top_k in (None, 1, 5, 1000):
            for top_p in (None, 0.05, 0.5, 0.9):
                scores = torch.tensor(logits[None], dtype=torch.float64)
                warpers = [TemperatureLogitsWarper(temperature)]
                warpers += [TopKLogitsWarper(top_k)] if top_k else []
                warpers += [TopPLogitsWarper(top_p)] if top_p else []
                for warper in warpers:
                    scores = warper(None, scores)
                want = torch.softmax(scores, -1)[0].numpy()
                got = probabilities(logits, temperature, top_k, top_p)
                if len(np.unique(logits)) == len(logits):
                    np.testing.assert_allclose(got, want, atol=1e-12)
                else:  # which of several equal logits falls to top-p is a matter of sorting
                    np.testing.assert_allclose(np.sort(got), np.sort(want), atol=1e-12)


def test_a_seed_repeats_and_frequencies_follow_probabilities(rng):
    logits = np.log(np.array([0.1, 0.2, 0.7])).astype(np.float32)
    sampler = Sampler(temperature=1.0, seed=7)
    draw = lambda: [sampler.choose(logits, g) for g in [sampler.generator()] for _ in range(4000)]  # noqa: E731
    drawn = draw()
    assert drawn == draw()
    np.testing.assert_allclose(np.bincount(drawn) / 4000, [0.1, 0.2, 0.7], atol=0.03)


@pytest.mark.parametrize(
    "bad",
    [dict(temperature=-1), dict(temperature=np.nan), dict(top_k=0), dict(top_k=1.5), dict(top_p=0), dict(top_p=1.1)],
)
def test_values_out_of_range(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Sampler(**bad)
