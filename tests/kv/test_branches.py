"""Fork, rewind and generation on a session: shared pages, the same bits, nothing copied that need not be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachequant.errors import InputError, NumericsError
from cachequant.kv.pages import BudgetError, PagePool, exact_rows
from helpers import random_model


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest.fixture(autouse=True)
def no_page_leaks(model):
    yield
    assert model.pool.in_use == 0


def alone(model, ids):
    with model.session() as session:
        return session.extend(ids)


@pytest.mark.parametrize("scheme", ["fp32", "int8", "bfp8", "w8a12", "int8-hadamard", "int8+head"])
def test_branches_give_the_bits_of_a_run_from_the_start(scheme, rng):
    model = random_model(scheme)
    ids, others = rng.integers(0, 61, 100).tolist(), rng.integers(0, 61, 50).tolist()
    with model.session() as session:
        session.extend(ids)
        for at in (0, 1, 31, 32, 33, 63, 64, 65, 96, 99, 100):
            with session.fork(at) as branch:
                assert np.array_equal(branch.extend(others), alone(model, ids[:at] + others))
        assert np.array_equal(session.extend(others), alone(model, ids + others))


def test_a_fork_shares_every_page_and_a_write_copies_one(model):
    with model.session() as session:
        session.extend([1] * 80)
        with session.fork() as branch, session.fork(70) as other:
            assert branch.pages == other.pages == session.pages
            assert model.pool.in_use == 3
            branch.extend([2])
            assert model.pool.in_use == 4
            assert branch.pages[:2] == session.pages[:2]
            other.extend([2])
            session.extend([3])  # nobody else holds its last page now
            assert model.pool.in_use == 5


def test_a_fork_at_a_page_boundary_copies_nothing(model):
    with model.session() as session:
        session.extend([1] * 64)
        with session.fork() as branch:
            branch.extend([2])
            assert branch.pages[:2] == session.pages
            assert model.pool.in_use == 3


def test_a_copied_page_holds_nothing_of_the_longer_branch(model):
    with model.session() as session:
        session.extend(list(range(20)))
        with session.fork(5) as branch:
            branch.extend([7], "none")
            c, page = model.config, model.pool.read(branch.pages[0])
            rows = [np.moveaxis(r, -2, 0) for r in exact_rows(page, c.layers, c.kv_heads, c.head_dim)]
            assert all(r[:6].any() and not r[6:].any() for r in rows)


def test_a_branch_outlives_its_parent(model, rng):
    ids = rng.integers(0, 61, 40).tolist()
    session = model.session()
    session.extend(ids)
    branch = session.fork(35)
    session.close()
    with branch:
        assert np.array_equal(branch.extend([3]), alone(model, ids[:35] + [3]))


def test_rewind_gives_pages_back(model):
    with model.session() as session:
        session.extend([1] * 100)
        for to, pages in ((97, 4), (96, 3), (33, 2), (32, 1), (1, 1), (0, 0)):
            session.rewind(to)
            assert (session.position, model.pool.in_use) == (to, pages)


@pytest.mark.parametrize("at", [-1, 4, 1.0, True, "1"])
def test_places_outside_the_session(model, at):
    with model.session() as session:
        session.extend([1, 2, 3])
        for call in (session.fork, session.rewind):
            with pytest.raises(InputError, match="from 0 to 3"):
                call(at)
        assert session.position == 3


def test_schemes_with_a_scale_for_all_tokens_refuse():
    model = random_model("int8-tensor")
    with model.session() as session:
        session.extend([1, 2, 3])
        for call in (session.fork, lambda: session.rewind(1), lambda: session.generate(None, 2)):
            with pytest.raises(InputError, match="int8-tensor"):
                call()
        assert len(session.generate([4], 2).ids) == 2


def test_generation_continues_a_session(model):
    whole = model.generate([5, 6, 7], 40)
    with model.session() as session:
        first = session.generate([5, 6, 7], 15)
        assert session.ids == [5, 6, 7, *first.ids]
        assert session.stored == session.position - 1
        second = session.generate(None, 25)
        assert first.ids + second.ids == whole.ids
        assert session.ids == [5, 6, 7, *whole.ids]
        assert np.array_equal(session.extend([1]), alone(model, [5, 6, 7, *whole.ids, 1]))


def test_all_logits_of_an_extension_are_those_of_its_tokens(model):
    with model.session() as session, model.session() as other:
        session.extend([1, 2])
        session.append([3, 4])
        assert session.stored == 2
        assert np.array_equal(session.extend([5, 6], "all"), other.extend([1, 2, 3, 4, 5, 6], "all")[-2:])


def test_a_generation_that_is_closed_early_keeps_what_was_given_out(model):
    whole = model.generate([5], 9).ids
    with model.session() as session:
        _, drawn = session.start([5], 9)
        taken = [next(drawn) for _ in range(4)]
        drawn.close()
        assert session.ids == [5, *taken] == [5, *whole[:4]]
        assert session.generate(None, 5).ids == whole[4:]


def test_limits_count_the_session(model):
    with model.session() as session:
        session.extend([1] * 250)
        with pytest.raises(InputError, match="at most 4"):
            session.generate([1, 1], 5)
        with pytest.raises(InputError, match="after 250"):
            session.generate([1] * 7)
        assert session.position == 250
        made = session.generate([1, 1])
        assert (len(made.ids), made.stop_reason, session.position) == (4, "context_limit", 256)
        assert session.generate(None).ids == []
        assert session.position == 256


def test_bad_generations_leave_a_session_as_it_was(model):
    with model.session() as session:
        with pytest.raises(InputError, match="no tokens to continue"):
            session.generate()
        session.extend([1, 2])
        for prompt, options in (([], {}), ([61], {}), ([1], {"top_q": 1}), (None, {"temperature": -1.0})):
            with pytest.raises(InputError):
                session.generate(prompt, 3, **options)
        assert (session.ids, session.stored) == ([1, 2], 2)


def test_non_finite_logits_stop_a_session_with_its_ids_intact(model, monkeypatch):
    with model.session() as session:
        session.extend([1, 2])
        with monkeypatch.context() as patch:
            patch.setattr(model._decoder, "logits", lambda h: np.full((len(h), 61), np.nan, np.float32))
            with pytest.raises(NumericsError):
                session.generate([3], 3)
        assert session.ids == [1, 2, 3]


def test_a_full_budget_leaves_the_session_as_it_was(model, rng):
    ids = rng.integers(0, 61, 40).tolist()
    small = random_model()
    small.pool = PagePool(2, 2, 8, budget_bytes=2 * small.pool.page_bytes)
    with small.session() as session:
        session.extend(ids)
        with session.fork() as branch, pytest.raises(BudgetError):
            branch.extend([1])
        with pytest.raises(BudgetError):
            session.extend([1] * 30)
        assert (session.position, small.pool.in_use) == (40, 2)
        assert np.array_equal(session.extend([1]), alone(model, [*ids, 1]))


def test_cuts_inside_encoded_pages_are_computed_again(model, monkeypatch, rng):
    """A format that keeps only its first page exact: what is stored shrinks to a page boundary, the ids do not."""
    monkeypatch.setattr(model.pool, "divisible", lambda index: index == 0)
    ids = rng.integers(0, 61, 90).tolist()
    with model.session() as session:
        session.extend(ids)
        for at, stored in ((90, 90), (80, 80), (64, 64), (63, 32), (33, 32), (31, 31), (5, 5)):
            with session.fork(at) as branch:
                assert (branch.position, branch.stored) == (at, stored)
                assert np.array_equal(branch.extend([9, 8]), alone(model, ids[:at] + [9, 8]))
        session.rewind(50)
        assert (session.ids, session.stored) == (ids[:50], 32)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_sequence_of_branches(model, data):
    sessions, truth = [model.session()], [[]]
    for _ in range(data.draw(st.integers(1, 12))):
        i = data.draw(st.integers(0, len(sessions) - 1))
        step = data.draw(st.sampled_from(["extend", "append", "fork", "rewind", "close"]))
        if step in ("extend", "append") and len(truth[i]) < 200:
            ids = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=40))
            getattr(sessions[i], step)(ids)
            truth[i] = truth[i] + ids
        elif step == "fork":
            at = data.draw(st.integers(0, len(truth[i])))
            sessions.append(sessions[i].fork(at))
            truth.append(truth[i][:at])
        elif step == "rewind":
            at = data.draw(st.integers(0, len(truth[i])))
            sessions[i].rewind(at)
            truth[i] = truth[i][:at]
        elif step == "close":
            sessions[i].close()
            truth[i] = []
        assert [s.ids for s in sessions] == truth
        assert model.pool.in_use == len({page for s in sessions for page in s.pages})
    for session, ids in zip(sessions, truth, strict=True):
        assert np.array_equal(session.extend([7]), alone(model, [*ids, 7]))
        session.close()
