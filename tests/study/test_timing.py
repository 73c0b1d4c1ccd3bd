"""Statistics against hand-worked numbers."""

import numpy as np
import pytest

from cachequant.errors import InputError
from cachequant.study import timing
from cachequant.study.timing import BenchResult, GenerationTiming, ReferencePrice


def test_percentile_is_nearest_rank():
    values = [400.0, 100.0, 300.0, 200.0]
    assert timing.percentile(values, 0.5) == 300.0  # round(1.5) = 2
    assert timing.percentile(values, 0.9) == 400.0
    assert timing.percentile(values, 0.0) == 100.0
    assert timing.percentile([7.0], 0.9) == 7.0
    with pytest.raises(InputError, match="1.5"):
        timing.percentile(values, 1.5)


def test_bench_result_by_hand():
    price = ReferencePrice("machine", 0.36, "nowhere", "never")
    result = BenchResult.of(GenerationTiming(0.5, 100, [0.1, 0.2, 0.3, 0.4]), price)
    assert result.prefill_tok_s == 200
    assert result.decode_tok_s == pytest.approx(4.0)  # four tokens in one second: the first came from the prefill
    assert result.generated == 5
    assert result.latency_mean_ms == pytest.approx(250)
    assert result.latency_p50_ms == pytest.approx(300)
    assert result.latency_p90_ms == pytest.approx(400)
    assert result.wall_seconds == pytest.approx(1.5)
    assert result.cost_per_thousand == pytest.approx(0.36 / 3600 * 1.5 / 5 * 1000)


def test_bench_result_of_one_token_has_no_decode_figures():
    result = BenchResult.of(GenerationTiming(0.5, 100))
    assert (result.generated, result.decode_tok_s, result.latency_p50_ms) == (1, None, None)


def test_summary_keeps_all_values_and_is_repeatable(rng):
    values = rng.normal(10, 1, 9).tolist()
    first = timing.summary(values)
    assert first == timing.summary(values)
    assert first["values"] == values
    assert min(values) <= first["low"] <= first["median"] <= first["high"] <= max(values)


def test_interval_covers_the_median_about_as_often_as_it_says(rng):
    hits = 0
    for _ in range(200):
        low, high = timing.interval(rng.normal(0, 1, 25), resamples=500)
        hits += low <= 0 <= high
    assert 0.88 <= hits / 200 <= 1.0


def test_single_value_is_its_own_interval():
    assert timing.summary([3.0]) == {"median": 3.0, "low": 3.0, "high": 3.0, "values": [3.0]}


def test_ratio_is_paired_within_rounds(rng):
    drift = rng.uniform(1, 10, 7)  # the machine's mood, common to both arms
    found = timing.ratio(3 * drift, drift)
    assert found == {"median": pytest.approx(3), "low": pytest.approx(3), "high": pytest.approx(3)}


def test_ratio_uses_the_rounds_that_both_have():
    assert timing.ratio([8.0], [2.0, 100.0])["median"] == 4.0
    with pytest.raises(InputError, match="positive"):
        timing.ratio([1.0], [0.0])


def test_geometric_mean():
    assert timing.geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4.0)
    with pytest.raises(InputError, match="positive"):
        timing.geometric_mean([1.0, 0.0])


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf]], ids=["none", "nan", "inf"])
def test_bad_values_are_refused(values):
    with pytest.raises(InputError):
        timing.summary(values)
