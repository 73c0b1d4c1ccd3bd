"""Sessions: page accounting and refusals that leave the session as it was."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.errors import InputError
from helpers import checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return cq.load(checkpoint("gpt2", str(tmp_path_factory.mktemp("models"))))


def test_pages_follow_tokens_and_go_back(model, rng):
    session = model.session()
    for tokens, pages in ((1, 1), (30, 1), (1, 1), (1, 2), (33, 3)):
        session.extend(rng.integers(0, 131, tokens), logits="none")
        assert model.pool.in_use == pages
    assert (session.position, session.nbytes) == (66, 3 * model.pool.page_bytes)
    session.close()
    assert (model.pool.in_use, session.position) == (0, 0)


def test_sessions_do_not_see_each_other(model, rng):
    a, b = rng.integers(0, 131, 40), rng.integers(0, 131, 40)
    with model.session() as alone:
        want = alone.extend(a)
    with model.session() as first, model.session() as second:
        for i in range(0, 40, 8):
            got = first.extend(a[i : i + 8])
            second.extend(b[i : i + 8])
    assert np.array_equal(got, want)


@pytest.mark.parametrize("bad", [[], [131], [[1, 2]], ["a"], [1.0], list(range(97))])
def test_refused_tokens_leave_the_session_as_it_was(model, bad):
    with model.session() as session:
        session.extend([1, 2])
        with pytest.raises(InputError):
            session.extend(bad)
        assert session.position == 2


def test_unknown_logits(model):
    with model.session() as session, pytest.raises(InputError, match="last, all, hidden, none"):
        session.extend([1], logits="first")
