"""Long and short prompts: what is refused, what an arm answers, and what becomes of the answers."""

import json

import pytest

import helpers
from cachequant.errors import InputError
from cachequant.study import bench, prefill_arms, prefill_bench
from cachequant.study.prefill_arms import PrefillWork
from cachequant.study.prefill_bench import Work


@pytest.fixture
def arm(monkeypatch):
    """An arm around a tiny model."""
    monkeypatch.setattr("cachequant.load", lambda model, scheme, threads: helpers.random_model(scheme))
    monkeypatch.setattr(prefill_arms, "SHORT_SECONDS", 0.0)
    return PrefillWork("int8", "tiny", 1)


def test_an_arm_times_a_prompt_in_every_way(arm, monkeypatch):
    cuts = []
    monkeypatch.setattr(arm, "_seconds", lambda parts: cuts.append(parts) or 0.5)
    assert arm.prefill([1, 2, 3]) == arm.short([1, 2, 3]) == {"seconds": 0.5}
    assert arm.steps([1, 2, 3]) == {"seconds": 0.5, "steps": 0.5}
    assert cuts == [[[1, 2, 3]], [[1, 2, 3]], [[1, 2, 3]], [[1], [2], [3]]]


def test_attention_is_a_part_of_its_pass(arm):
    found = arm.attention([5] * 40)
    assert 0 < found["attention"] < found["seconds"]
    assert arm.steps([1, 2])["steps"] > 0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"work": Work(long=[])}, "long"),
        ({"work": Work(long=[64, 32])}, "ascending"),
        ({"work": Work(long=[16], short=[0, 1])}, "short"),
        ({"work": Work(long=[16], sweep=[1025])}, "to 1024"),
        ({"work": Work(long=[1024])}, "to 1023"),
        ({"names": ["int9"]}, "int9"),
        ({"names": ["int8", "int8"]}, "twice"),
        ({"repeats": 0}, "repeats 0"),
    ],
)
def test_bad_requests_are_refused(how, message, monkeypatch):
    monkeypatch.setattr(prefill_bench, "Crew", lambda *a: pytest.fail("loaded an arm"))
    with pytest.raises(InputError, match=message):
        bench.prefill(**{"names": ["int8"], "model": "gpt2-random", "work": Work(long=[16]), **how})


class Crew:
    """Workers that answer at once: a token takes 1 ms in one pass and 2 ms alone; the product makes a round figure."""

    def __init__(self, requests, *_):
        self.names, self.missing = list(requests), {}

    def ask(self, name, do, ids=()):
        if do == "multiply":
            return {"seconds": [1e-3]}
        seconds = 1e-3 * len(ids) * (2 if len(ids) > 20 else 1)
        return {"seconds": seconds, "attention": seconds / 4, "steps": 2e-3 * len(ids)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_answers_become_figures(monkeypatch):
    monkeypatch.setattr(prefill_bench, "Crew", Crew)
    monkeypatch.setattr(prefill_bench.session_memory, "measure", lambda *given: {"bytes": given})
    seen = []
    found = bench.prefill(
        ["fp32", "int8"], "gpt2-random", Work([16, 64], [1, 4], [1, 2], [16]), 2, 1, lambda *a: seen.append(a)
    )
    json.dumps(found, allow_nan=False)
    own = found["arms"]["int8"]
    assert own["prefill_tok_s"]["median"] == pytest.approx(500) and len(own["kept"]["values"]) == 2
    assert own["kept"]["median"] == pytest.approx(0.5)
    assert own["against_steps"]["median"] == pytest.approx(2)
    operations = 4 * (64 * 65 // 2) * 12 * 768
    assert found["operations"]["64"]["attention"] == operations
    assert own["attention_gops"]["median"] == pytest.approx(operations / 0.032 / 1e9)
    product = prefill_bench.machine.gops({"seconds": [1e-3]})
    assert own["attention_fraction"]["median"] == pytest.approx(operations / 0.032 / 1e9 / product)
    assert found["gemm_gops"]["median"] == pytest.approx(product)
    assert list(found["long"]) == ["16", "64"] and list(found["sweep"]) == ["1", "2"]
    assert found["memory"]["16"]["bytes"] == ("fp32", "gpt2-random", "int8", 16, 1, 16, 1)
    assert found["ratios"]["int8/fp32"]["prefill_tok_s"]["median"] == 1
    assert seen[-1][:2] == (16, 16)  # two long ones twice, two short ones and two of the sweep, in two rounds
