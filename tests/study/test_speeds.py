"""Rows of the speed chapters, from a small result made by hand."""

import pytest

from cachequant.study import speeds
from cachequant.study.results import Result


def cell(value):
    return {"median": value, "low": value, "high": value, "values": [value]}


@pytest.fixture
def result():
    arms = {a: {"prefill_tok_s": cell(20.0 * s), "decode_tok_s": cell(5.0 * s)} for a, s in (("fp32", 1), ("int8", 2))}
    bench = {
        "arms": arms,
        "facts": {
            "fp32": {"weight_bytes": 400, "rss_bytes": 2e6, "peak_rss_bytes": 3e6},
            "int8": {"weight_bytes": 100, "rss_bytes": 1e6, "peak_rss_bytes": 3e6},
        },
        "provenance": {"workload": {"prompt": 8, "new": 4}},
    }
    model = {"random": True, "kv_bytes": 10, "multiplications": {"blocks": 100, "head": 50}}
    data = {
        "models": {"tiny": model},
        "workloads": {"short": {"prompt_tokens": 8, "new_tokens": 4}},
        "profiles": {"tiny": {"short": bench}},
        "machine": {
            "threads": 2,
            "read_gb_s": {"1": cell(1e-6), "2": cell(2e-6)},
            "gemm_gops": {"fp32": cell(1e-5), "int8": cell(4e-5)},
        },
    }
    return Result("01_baseline", "local", {}, {}, data)


def test_random_weights_are_named_everywhere(result):
    assert list(speeds.benches(result, "tiny")) == ["tiny (random weights), short, 8 + 4"]
    assert {r["model"] for r in speeds.rows(result) + speeds.reached(result)} == {"tiny (random weights)"}


def test_rows_leave_missing_metrics_empty(result):
    first = speeds.rows(result)[0]
    assert first["decode_tok_s"]["median"] == 5 and first["cost_per_thousand"] is None


def test_bandwidth_is_that_of_the_threads_that_ran(result):
    assert speeds.bandwidth(result) == 2e-6


def test_reached_compares_codes_with_the_int8_peak(result):
    fp32, int8 = speeds.reached(result)
    assert fp32["mb"] == pytest.approx(500e-6)  # 400 bytes of weights, 10 cached tokens of 10 bytes
    assert fp32["read"] == pytest.approx(500 * 5 / 2e-6 / 1e9)
    assert fp32["peak"] == pytest.approx(2 * 850 / (8 / 20) / 1e9 / 1e-5)
    assert int8["peak"] == pytest.approx(2 * 850 / (8 / 40) / 1e9 / 4e-5)
    assert [r["arm"] for r in speeds.reached(result, ["int8"])] == ["int8"]


def test_a_short_prompt_is_worth_a_few_steps(result):
    assert speeds.first_in_steps(result.data["profiles"]["tiny"]["short"], "fp32") == pytest.approx(2.0)


def test_roofs_name_their_units(result):
    assert [r["what"] for r in speeds.roofs(result)][:2] == [
        "reading memory, 1 thread, GB/s",
        "reading memory, 2 threads, GB/s",
    ]


def test_memory_is_in_megabytes(result):
    assert [(r["arm"], r["resident"], r["peak"]) for r in speeds.memory(result)] == [("fp32", 2, 3), ("int8", 1, 3)]


def test_an_arm_that_failed_later_has_no_row(result):
    del result.data["profiles"]["tiny"]["short"]["facts"]["int8"]
    assert [r["arm"] for r in speeds.reached(result)] == ["fp32"]
