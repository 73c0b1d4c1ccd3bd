"""Costs of sessions on a tiny model: the right places, the right work, and bits that are those of one prefill."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.errors import InputError
from cachequant.study import session_costs, session_rows
from cachequant.study.results import Result
from cachequant.study.session_costs import SessionCosts
from helpers import random_model

MODEL = random_model("int8", head_dim=16)
IDS = np.random.default_rng(0).integers(0, 61, 120).tolist()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("snapshots")
    costs = SessionCosts(MODEL, ["fp32", "k4v4"], IDS, folder).measure(100, repeats=2, long_repeats=1)
    assert not any(folder.iterdir())
    return costs


def test_the_places_of_a_cut():
    assert session_costs.places(276) == {"end": 276, "boundary": 128, "inside": 127}
    assert session_costs.places(65) == {"end": 65, "boundary": 64, "inside": 63}


@pytest.mark.parametrize("tokens", [0, 40, 64, 95, 96])
def test_lengths_without_a_partial_last_page_are_refused(tokens):
    with pytest.raises(InputError, match=f"of {tokens} tokens"):
        session_costs.places(tokens)


def test_too_few_ids_are_refused(tmp_path):
    with pytest.raises(InputError, match="there are 101"):
        SessionCosts(MODEL, ["fp32"], IDS[:101], tmp_path).measure(100, 1, 1)


def test_exact_pages_are_copied_and_coded_ones_computed_again(found):
    work = {
        (name, place): (f["recomputed"], f["copied_bytes"] > 0)
        for name, costs in found.items()
        for place, f in costs["forks"].items()
    }
    assert work == {
        ("fp32", "end"): (0, True), ("fp32", "boundary"): (0, False), ("fp32", "inside"): (0, True),
        ("k4v4", "end"): (0, True), ("k4v4", "boundary"): (0, False), ("k4v4", "inside"): (31, False),
    }  # fmt: skip


def test_every_round_is_kept_and_no_bit_differs(found):
    for costs in found.values():
        for fork in costs["forks"].values():
            assert fork["same"]
            assert all(len(fork[metric]["values"]) == 2 for metric in session_costs.FORK)
        assert costs["snapshot"]["same"]
        assert all(costs["snapshot"][m]["median"] > 0 for m in session_costs.SNAPSHOT)
        assert costs["bytes"]["pages"] < costs["bytes"]["file"] < costs["bytes"]["pages"] + 4096


def test_a_branch_with_other_bits_is_told(tmp_path, monkeypatch):
    fork = cq.Session.fork

    def forked(session, at=None):
        branch = fork(session, at)
        if at == 64:
            branch.ids[0], branch._stored = 1 - branch.ids[0] % 2, 0  # the first token is another one
            branch._table.trim(0)
        return branch

    monkeypatch.setattr(cq.Session, "fork", forked)
    costs = SessionCosts(MODEL, ["fp32"], IDS, tmp_path).measure(100, 1, 1)
    assert {place: fork["same"] for place, fork in costs["fp32"]["forks"].items()} == {
        "end": True, "boundary": False, "inside": True,
    }  # fmt: skip
    assert session_rows.bits_differ(Result("10_sessions", "local", {}, {}, {"costs": {"100": costs}})) == 1
