"""The prefix benchmark on a tiny model: its arms do the work that they say, and the object has what it promises."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.errors import InputError
from cachequant.study import prefix_bench
from cachequant.study.prefix_arms import Bound, Cached, NoCache
from helpers import random_model

MODEL = random_model(context=600)


@pytest.fixture(autouse=True)
def no_page_leaks():
    yield
    assert MODEL.pool.in_use == 0


@pytest.mark.parametrize("name", ["high_reuse", "multi_turn"])
def test_the_object_of_a_benchmark(name):
    found = prefix_bench.measure({"": MODEL}, name, repeats=2)
    assert found["arms"].keys() == {"cache", "no-cache", "bound"}
    for arm, metrics in found["arms"].items():
        assert len(metrics["speed"]["values"]) == 2
        assert ("overhead_ms" in metrics) == (arm == "cache")
    assert found["ratios"]["cache/no-cache"].keys() == {"speed"}
    assert len(found["ratios"]) == 6
    assert (found["missing"], found["identical"], found["retokenized"]) == ([], True, None)
    rows = found["requests"]
    assert len(rows) == (5 if name == "high_reuse" else 24)
    assert all(row["matched"] + row["recomputed"] == row["prompt"] for row in rows)
    assert found["hit_rate"] == sum(r["matched"] for r in rows) / sum(r["prompt"] for r in rows)
    assert all(len(row["arms"]["bound"]["speed"]["values"]) == 2 for row in rows)
    assert found["provenance"]["models"][0]["random"]


def test_generated_tokens_are_found_in_the_next_turn():
    found = prefix_bench.measure({"": MODEL}, "multi_turn", ["cache"], repeats=1)
    for row in found["requests"][1:8]:
        before = found["requests"][row["turn"] - 1]["prompt"]
        assert row["matched"] == before + 11  # the last token of an answer has not been run
    last = found["turns"][7]
    assert (last["turn"], last["hit_rate"] >= last["lowest_hit_rate"] > 0.9) == (7, True)
    assert len(last["arms"]["cache"]["speed"]["values"]) == 3


def test_several_models_in_one_run():
    models = {"fp32": MODEL, "int8": random_model("int8", context=600)}
    found = prefix_bench.measure(models, "high_reuse", ["cache", "no-cache"], repeats=1, logits="all")
    assert list(found["arms"]) == ["fp32 cache", "fp32 no-cache", "int8 cache", "int8 no-cache"]
    assert "overhead_ms" in found["ratios"]["int8 cache/fp32 cache"]
    assert found["identical"]
    assert found["provenance"]["schemes"] == {"fp32": "fp32", "int8": "int8"}


def test_a_cache_that_gives_other_bits_is_told(monkeypatch):
    extend = cq.Session.extend

    def wrong(self, ids, logits="last"):
        found = extend(self, ids, logits)
        return found if found is None or len(ids) > 10 else found + np.float32(1)

    monkeypatch.setattr(cq.Session, "extend", wrong)
    assert not prefix_bench.measure({"": MODEL}, "high_reuse", repeats=1)["identical"]


@pytest.mark.parametrize("name", ["long_high_reuse", "multi_turn"])
def test_the_bound_runs_what_the_cache_does_not_have_and_copies_nothing(name, monkeypatch):
    (turns, *_) = prefix_bench.conversations.get(name).conversations(MODEL)
    cached, bound, alone = Cached(MODEL, "last"), Bound(MODEL, "last"), NoCache(MODEL, "last")
    runs, copies, extend, copy = [], [], cq.Session.extend, MODEL.pool.copy
    monkeypatch.setattr(
        cq.Session, "extend", lambda self, ids, *more: runs.append((len(ids), *more)) or extend(self, ids, *more)
    )
    monkeypatch.setattr(MODEL.pool, "copy", lambda *given: copies.append(given) or copy(*given))
    for turn in turns:
        request = cached.serve(turn).request
        runs.clear(), copies.clear()
        sample = bound.serve(turn, request.matched)
        timed = [run for run in runs if run[1:] == ("last",)]
        assert [run[0] for run in timed] == [request.recomputed]
        assert copies == []
        assert np.array_equal(sample.logits, alone.serve(turn, 0).logits)
    for arm in (cached, bound, alone):
        arm.close()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(name="other"), "'other'"),
        (dict(arms=["bond"]), "'bond'.*no-cache"),
        (dict(arms=["cache", "cache"]), "twice"),
        (dict(repeats=0), "repeats 0"),
        (dict(new=-1), "new -1"),
        (dict(logits="first"), "'first'"),
        (dict(new=400), "needs 426 tokens"),
        (dict(budget_bytes=1), "holds no page"),
    ],
)
def test_what_cannot_be_measured_is_refused_first(change, match, monkeypatch):
    monkeypatch.setattr(cq.Session, "extend", lambda *given: pytest.fail("ran"))
    model = MODEL if "new" not in change else random_model()
    with pytest.raises(InputError, match=match):
        prefix_bench.measure({"": model}, **dict(name="high_reuse") | change)


def test_schemes_with_a_scale_for_all_tokens_are_refused():
    with pytest.raises(InputError, match="int8-tensor"):
        prefix_bench.measure({"": random_model("int8-tensor")}, "high_reuse")
