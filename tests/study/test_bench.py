"""The timing loop, and the decode benchmark end to end on a tiny model."""

import json

import pytest

import helpers
from cachequant.errors import InputError
from cachequant.study import arms, bench, peer_check, torch_engine
from cachequant.study.arms import Stopped
from cachequant.study.decode_bench import DecodeBench, _metrics
from cachequant.study.processes import WorkerError


class Counting:
    """An engine whose next token is the last plus one."""

    weight_bytes = 0

    def __init__(self, stop_at=None):
        self.deadline, self._stop_at, self._calls = None, stop_at, 0

    def _run(self, token):
        self._calls += 1
        if self._calls == self._stop_at:
            raise Stopped(3, 12)
        return token + 1

    def start(self, ids):
        return self._run(ids[-1])

    def step(self, token):
        return self._run(token)

    def choose(self, logits):
        return logits


def test_first_token_comes_from_the_prefill():
    run = arms.generate(Counting(), [5, 6], new=4)
    assert run.ids == [7, 8, 9, 10] and run.complete
    assert len(run.timing.token_seconds) == 3 and run.timing.prefill_tokens == 2
    assert run.timing.generated == 4


def test_stop_inside_the_prefill_counts_layers():
    run = arms.generate(Counting(stop_at=1), [5] * 24, new=4, limit_seconds=30)
    assert (run.ids, run.layers, run.complete) == ([], (3, 12), False)
    run.timing.prefill_seconds = 2.0
    found = _metrics([json.loads(json.dumps(vars(run) | {"timing": vars(run.timing)}))], prompt=24)
    assert found["prefill_tok_s"] == [24 * 3 / 12 / 2.0]
    assert not any(values for metric, values in found.items() if metric != "prefill_tok_s")


def test_stop_while_decoding_keeps_what_was_done():
    run = arms.generate(Counting(stop_at=3), [5], new=9, limit_seconds=30)
    assert (run.ids, run.complete) == ([6, 7], False) and len(run.timing.token_seconds) == 1
    run = arms.generate(Counting(), [5], new=9, limit_seconds=0.0)
    assert (run.ids, run.complete) == ([6], False)


def test_unknown_arm_lists_the_known_ones():
    with pytest.raises(InputError, match="transformers-fp32.*bfp8"):
        arms.get("gpu")
    assert arms.get("transformers-bf16").slow and not arms.get("int8+head").slow


@pytest.mark.parametrize("name", ["gpt2", "llama-biases"])
def test_dynamic_int8_replaces_every_linear_layer(name):
    import torch

    model = helpers.transformers_model(name)
    ids = torch.tensor([[1, 5, 9, 3]])
    with torch.inference_mode():
        exact = model(ids).logits
        size = torch_engine.streamed_bytes(model)
        model = torch_engine.dynamic_int8(model)
        left = {type(m).__name__ for m in model.modules()} & {"Linear", "Conv1D"}
        assert left <= {"Linear"} and all("quantized" in type(m).__module__ for m in _linears(model))
        error = (model(ids).logits - exact).abs().mean() / exact.abs().mean()
    assert 0 < error < 0.3
    assert torch_engine.streamed_bytes(model) < 0.35 * size


def _linears(model):
    return [m for m in model.modules() if type(m).__name__ in ("Linear", "Conv1D")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return helpers.checkpoint("llama-gqa-tied", str(tmp_path_factory.mktemp("tiny")))


def test_decode_end_to_end(tiny):
    seen = []
    names = ["transformers-fp32", "torch-int8", "fp32", "int8+head"]
    found = bench.decode(tiny, names, prompt=6, new=4, repeats=3, threads=1, progress=lambda *a: seen.append(a))
    json.dumps(found, allow_nan=False)
    assert set(found["arms"]) == set(names) and found["missing"] == [] and found["partial"] == {}
    for arm in names:
        metrics = found["arms"][arm]
        assert all(len(metrics[m]["values"]) == 3 for m in ("prefill_tok_s", "decode_tok_s", "latency_p90_ms"))
        assert found["facts"][arm]["peak_rss_bytes"] > 10_000_000
        assert [len(r["token_seconds"]) for r in found["runs"][arm]] == [3, 3, 3]
    assert len(found["ratios"]) == 12 and set(found["ratios"]["fp32/torch-int8"]) == {"prefill_tok_s", "decode_tok_s"}
    ids = {arm: runs[0]["ids"] for arm, runs in found["runs"].items()}
    assert ids["fp32"] == ids["transformers-fp32"]
    assert all(r["ids"] == runs[0]["ids"] for runs in found["runs"].values() for r in runs)
    assert found["facts"]["fp32"]["weight_bytes"] > found["facts"]["int8+head"]["weight_bytes"]
    assert found["provenance"]["workload"] == {"prompt": 6, "new": 4, "repeats": 3, "batch": 1}
    assert found["provenance"]["threads"] == {"workers": 1}
    assert seen[-1][:2] == (12, 12)


def test_forward_pass_out_of_time_stops_between_layers(tiny):
    engine = torch_engine.Transformers(tiny, threads=1)
    engine.deadline = 0.0
    with pytest.raises(Stopped) as stop:
        engine.start([1, 2, 3])
    assert (stop.value.done, stop.value.total) == (0, 2)
    run = arms.generate(engine, [1, 2, 3], new=3, limit_seconds=30)
    assert run.complete and len(run.ids) == 3


def test_peers_run_alone_without_our_code(tiny):
    with DecodeBench(tiny, ["torch-int8"], threads=1) as found:
        checks = peer_check.check(found, prompt=5, new=3, repeats=2)
    assert set(checks) == {"torch-int8"} and set(checks["torch-int8"]) == {"prefill_tok_s", "decode_tok_s"}
    for cell in checks["torch-int8"].values():
        assert cell["alone"] > 0 and cell["beside"] > 0 and cell["ok"] == (abs(cell["difference"]) <= 0.1)
    with pytest.raises(WorkerError, match="alone failed"):
        peer_check.run({"folder": "/nowhere", "arm": "torch-int8", "ids": [1], "new": 2, "repeats": 1, "threads": 1})


@pytest.mark.parametrize(
    "how,message",
    [
        ({"arms": ["nope"]}, "unknown arm 'nope'"),
        ({"arms": ["fp32", "fp32"]}, "twice"),
        ({"threads": 0}, "threads 0"),
    ],
    ids=["unknown", "twice", "threads"],
)
def test_bad_requests_fail_before_anything_is_loaded(tiny, how, message):
    with pytest.raises(InputError, match=message):
        bench.decode(tiny, **{"arms": ["fp32"], **how})


@pytest.mark.parametrize(
    "how,message",
    [
        ({"prompt": 2, "new": 2, "repeats": 0}, "repeats 0"),
        ({"prompt": 90, "new": 10}, "do not fit the context of 96"),
        ({"prompt": 0}, "at least 1"),
        ({"prompt": 2, "new": 0}, "new tokens 0"),
    ],
    ids=["repeats", "context", "prompt", "new"],
)
def test_bad_lengths_are_refused(tiny, how, message, monkeypatch):
    monkeypatch.setattr("cachequant.study.decode_bench.Crew", lambda *a: pytest.fail("loaded an arm"))
    with pytest.raises(InputError, match=message):
        bench.decode(tiny, ["fp32"], **how)
