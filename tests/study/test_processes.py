"""Workers answer, fail with a reason, and use no CPU while they wait."""

import os
import signal
import time

import psutil
import pytest

from cachequant.errors import InputError
from cachequant.study.crew import Crew, checked, rotations
from cachequant.study.processes import Worker, WorkerError, environment

SMALL = {"kind": "gemm", "threads": 2, "shapes": [(48, 32), (16, 64)], "rows": 5, "stream_bytes": 100_000}


@pytest.fixture(scope="module")
def worker():
    with Worker(threads=2) as found:
        found.ask("open", arm="int8", **SMALL)
        yield found


def test_facts_and_timings(worker):
    assert all(s > 0 for s in worker.ask("multiply")["seconds"])
    assert all(s > 0 for s in worker.ask("stream")["seconds"])
    memory = worker.ask("memory")
    assert 10_000_000 < memory["rss_bytes"] <= memory["peak_rss_bytes"] * 1.01


def test_error_names_its_kind_and_the_worker_lives_on(worker):
    with pytest.raises(WorkerError, match="TypeError"):
        worker.ask("multiply", wrong=1)
    assert worker.ask("memory")["rss_bytes"] > 0


def test_idle_worker_sleeps(worker):
    worker.ask("multiply")
    time.sleep(0.1)
    process = psutil.Process(worker.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(0.6)
    assert sum(process.cpu_times()[:2]) - before <= 0.05


def test_death_is_reported():
    with Worker(threads=1) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="ended early"):
            worker.ask("memory")


def test_no_answer_in_time_ends_the_worker():
    with Worker(threads=1) as worker:
        with pytest.raises(WorkerError, match="no answer within"):
            worker.ask("open", seconds=0.01, arm="fp32", **SMALL)
        assert not psutil.pid_exists(worker.pid)


def test_crew_keeps_those_that_run_and_says_why_not():
    requests = {"int8": {"arm": "int8", **SMALL}, "broken": {"arm": "nothing", **SMALL}}
    with Crew(requests, threads=1) as crew:
        assert crew.names == ["int8"]
        assert "unknown arm 'nothing'" in crew.missing["broken"]
        assert crew.ask("broken", "multiply") is None
        assert len(crew.facts["int8"]["bytes"]) == 2 and crew.facts["int8"]["copies"] > 1
        assert crew.ask("int8", "no such thing") is None
        assert crew.names == [] and "int8" in crew.missing


def test_every_arm_starts_a_round_in_turn():
    orders = [order for _, order in rotations(["a", "b", "c"], 4)]
    assert [o[0] for o in orders] == ["a", "b", "c", "a"]
    assert all(sorted(o) == ["a", "b", "c"] for o in orders)


def test_lists_of_arms_are_checked():
    assert checked(("x", "y"), str.upper) == {"x": "X", "y": "Y"}
    for names, message in (([], "at least one"), (["x", "x"], "twice")):
        with pytest.raises(InputError, match=message):
            checked(names, str.upper)


def test_environment_pins_pools_and_keeps_the_waiting_policy(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    found = environment(3)
    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "3"
    assert "OMP_WAIT_POLICY" not in found
