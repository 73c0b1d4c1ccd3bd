"""Benches of compressed keys and values: what is refused before anything runs, and what a worker measures."""

import numpy as np
import pytest

import helpers
from cachequant.errors import InputError
from cachequant.study import attention_arms, attention_bench, context_bench, encode_bench, session_memory
from cachequant.study.attention_arms import AttentionWork
from cachequant.study.context_bench import TOKENS, ContextWork
from cachequant.study.session_memory import SessionWork
from cachequant.study.steps import Steps


@pytest.fixture
def loaded(monkeypatch):
    """`cachequant.load` gives a tiny model with the pages that were asked for."""

    def load(model, scheme=None, threads=None, kv="fp32", calibration="auto"):
        return helpers.random_model(width=32, heads=2, kv_heads=1, head_dim=16).with_kv(kv, "none")

    monkeypatch.setattr("cachequant.load", load)


@pytest.mark.parametrize("arm", ["int8", "int8/k4v4"])
def test_a_step_leaves_the_session_as_it_was(loaded, arm):
    work = ContextWork(arm, "tiny", 1, 200)
    ids = np.random.default_rng(0).integers(0, 61, 96).tolist()
    assert work.grow(ids[:64])["bytes"] > 0
    assert work.step(3)["seconds"] > 0
    grown = work._engine._session
    assert grown.position == grown.stored == 64
    work.grow(ids[64:])
    with work._engine.session() as session:
        expected = session.extend(ids + [3])
    assert (work._engine.step(3) == expected).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"contexts": [33]}, "multiples of 32"),
        ({"contexts": [64, 32]}, "ascending"),
        ({"contexts": []}, "ascending"),
        ({"contexts": [1024 - TOKENS + 8]}, f"up to {1024 - TOKENS}"),
        ({"repeats": 0}, "repeats 0"),
        ({"names": ["int8", "int8"]}, "twice"),
        ({"names": ["int8/k5v5"]}, "k5v5"),
        ({"names": ["int8", "transformers-fp32"]}, "'transformers-fp32' does not grow"),
    ],
)
def test_bad_requests_are_refused(how, message):
    with pytest.raises(InputError, match=message):
        context_bench.decode(**{"names": ["int8"], "model": "gpt2-random", "contexts": [64], **how})


def test_decode_against_context_in_workers(monkeypatch):
    """The crew replaced by workers in this process."""

    class Crew:
        def __init__(self, requests, *_):
            assert {r["tokens"] for r in requests.values()} == {128 + TOKENS}
            self.names, self.missing = list(requests), {}

        def ask(self, name, do, **request):
            return {"seconds": 0.5 if name == "int8" else 0.25, "bytes": 10}

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(context_bench, "Crew", Crew)
    monkeypatch.setattr(context_bench.peers, "prepare", lambda *_: {"llamacpp-q8_0/q4_0": "not here"})
    names = ["int8", "int8/k4v4", "llamacpp-q8_0/q4_0"]
    found = context_bench.decode(names, "gpt2-random", [64, 128], repeats=2)
    assert found["64"]["provenance"]["missing"] == {"llamacpp-q8_0/q4_0": "not here"}
    assert list(found) == ["64", "128"]
    assert found["128"]["ratios"]["int8/k4v4/int8"]["speed"]["median"] == 2
    assert len(found["64"]["arms"]["int8"]["speed"]["values"]) == 2


def test_a_long_session_takes_more_than_its_pages(loaded):
    work = SessionWork("tiny", "int8", "k2v2", 1)
    found = work.measure(list(range(60)) * 3, short=32, chunk=64)
    with work._model.session() as session:
        session.extend((list(range(60)) * 3) + [0], "none")
        assert found["page_bytes"] == session.nbytes
    assert found["peak_bytes"] > 0 and found["before_bytes"] > 0


@pytest.mark.parametrize("how", [{"tokens": 1024}, {"short": 0}, {"short": 99, "tokens": 64}, {"chunk": 0}])
def test_sessions_that_do_not_fit(how):
    with pytest.raises(InputError, match="sessions of"):
        session_memory.measure("k4v4", "gpt2-random", **{"tokens": 128, **how})


def test_coding_takes_longer_than_writing():
    found = encode_bench.measure(["fp32", "k4v4"], [2, 2, 1, 16], repeats=3)
    assert len(found["k4v4"]["values"]) == 3
    assert found["k4v4"]["median"] > found["fp32"]["median"] > 0


@pytest.mark.parametrize("geometry", [[1, 4, 4], [1, 4, 3, 64], [0, 4, 4, 64]])
def test_geometries_that_do_not_exist(geometry):
    with pytest.raises(InputError, match="layers, heads, kv_heads, head_dim"):
        attention_bench.attention(["kv-fp32"], geometry=geometry)


def test_half_tensors_are_half_as_large(monkeypatch):
    monkeypatch.setattr(attention_arms, "PASSES_SECONDS", 0)
    half, single = (AttentionWork(arm, 1, [1, 4, 4, 16], 40, 1) for arm in ("sdpa-fp16", "sdpa-fp32"))
    assert 2 * half.facts()["bytes"] == single.facts()["bytes"] == 2 * 4 * 16 * 40 * 4
    assert half.step()["seconds"] > 0


def test_a_step_is_computed_once(tmp_path):
    calls = []

    def compute(value):
        calls.append(value)
        return {"a": np.float32(value), "b": (1, 2)}

    steps = Steps(tmp_path)
    first = steps.run("k4v4/none,1", compute, 2)
    assert first == Steps(tmp_path).run("k4v4/none,1", compute, 3) == {"a": 2.0, "b": [1, 2]}
    assert calls == [2]
    assert steps.run("other", compute, 4)["a"] == 4
