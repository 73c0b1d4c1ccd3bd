"""Threads: the fit finds the numbers that speeds were made from, and refuses what does not fit."""

import pytest

from cachequant.errors import InputError
from cachequant.study import scaling


def cell(value):
    return {"median": value, "low": value, "high": value, "values": [value]}


TRUTH = scaling.Model((1e-10, 2e-11), 0.9, {"fp32": 5e10, "int8": 2e11}, 0.003)


def made(counts, model=TRUTH):
    """A result of `measure` whose speeds are those of a model, and its read bandwidth."""
    arms = {"fp32": 5e8, "int8": 1.4e8}
    scaled = {"prompt": 270, "arms": {a: {"bytes": b, "operations": 6e10, "threads": {}} for a, b in arms.items()}}
    for arm, own in scaled["arms"].items():
        for n in counts:
            speeds = {p: model.tokens_a_second(scaled, arm, p, n) for p in scaling.PHASES}
            own["threads"][str(n)] = {f"{p}_tok_s": cell(v) for p, v in speeds.items()}
    return scaled, {str(n): cell(1e-9 / (model.byte[0] / n + model.byte[1])) for n in counts}


@pytest.mark.parametrize("counts", [(1, 2), (1, 2, 4, 6)])
def test_the_fit_finds_the_model_that_speeds_follow(counts):
    scaled, read = made(counts)
    found = scaling.fit(scaled, read)
    assert found.byte == pytest.approx(TRUTH.byte)
    assert (found.share, found.overhead) == pytest.approx((TRUTH.share, TRUTH.overhead))
    assert found.rates == pytest.approx(TRUTH.rates)
    assert scaling.error(found, scaled) < 1e-6


def test_one_thread_gives_a_memory_that_nobody_shares():
    found = scaling.fit(*made([1]))
    assert found.byte[0] + found.byte[1] == pytest.approx(sum(TRUTH.byte))
    assert scaling.error(found, made([1])[0]) < 1e-6


def test_no_part_is_negative():
    scaled, read = made([1, 2])
    read["2"] = cell(3 * read["1"]["median"])  # noise: more than twice as fast
    for own in scaled["arms"].values():
        own["threads"]["2"]["decode_tok_s"] = cell(4 * own["threads"]["1"]["decode_tok_s"]["median"])
    found = scaling.fit(scaled, read)
    assert min(*found.byte, found.share, found.overhead, *found.rates.values()) >= 0


def test_speeds_are_bounded_by_memory_however_many_threads():
    scaled, read = made([1, 2])
    found = scaling.fit(scaled, read)
    bound = 1 / (scaled["arms"]["int8"]["bytes"] * TRUTH.byte[1] / TRUTH.share + TRUTH.overhead)
    assert found.tokens_a_second(scaled, "int8", "decode", 4096) == pytest.approx(bound, rel=0.01)


class Crew:
    """Workers that answer at once: with n threads a prompt of 6 tokens takes 6 / n s and a token 1 / n s."""

    def __init__(self, requests, *_):
        self._threads = {name: request["threads"] for name, request in requests.items()}
        self.names, self.facts, self.missing = list(requests), dict.fromkeys(requests, {"weight_bytes": 100}), {}

    def ask(self, name, do, ids, new):
        n = self._threads[name]
        return {"timing": {"prefill_seconds": len(ids) / n, "prefill_tokens": len(ids), "token_seconds": [1 / n] * 3}}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_measured_with_every_number_of_threads(monkeypatch):
    monkeypatch.setattr(scaling, "Crew", Crew)
    found = scaling.measure(["int8"], "gpt2-random", prompt=6, new=4, repeats=2, threads=3)
    own = found["arms"]["int8"]
    assert {n: cell["decode_tok_s"]["median"] for n, cell in own["threads"].items()} == {"1": 1, "2": 2, "3": 3}
    assert own["threads"]["2"]["prefill_tok_s"]["values"] == [2, 2]
    assert own["bytes"] == 100 + 2 * 12 * 768 * 4 * (6 + 4 / 2)
    assert own["operations"] == 2 * (6 * 12 * 12 * 768**2 + 50257 * 768)


@pytest.mark.parametrize("how", [{"prompt": 1020, "new": 9}, {"new": 1}, {"threads": 0}, {"names": ["int9"]}])
def test_what_does_not_fit_is_refused(how):
    with pytest.raises(InputError):
        scaling.measure(**{"names": ["int8"], "model": "gpt2-random", **how})
