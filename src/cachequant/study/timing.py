"""Statistics of repeated timings, and what one timed generation says about speed, latency and cost.

A repetition is never dropped: the median is the headline, a bootstrap interval says how far to trust it, and every
value is kept (Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013). Two arms are compared by ratios
*paired* within a repetition, because a shared machine drifts more between minutes than the arms differ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cachequant.errors import InputError

RESAMPLES, LEVEL = 4000, 0.95


def median(values: Iterable[float]) -> float:
    """Median; the mean of the middle two of an even count. Raises InputError for no values."""
    return float(np.median(_checked(values)))


def percentile(values: Iterable[float], p: float) -> float:
    """Nearest-rank percentile: the sorted value at round(p * (n - 1)), 0 <= p <= 1.

    >>> percentile([100.0, 200.0, 300.0, 400.0], 0.5)
    300.0
    """
    if not 0 <= p <= 1:
        raise InputError(f"percentile {p!r} is not in [0, 1]")
    ordered = np.sort(_checked(values))
    return float(ordered[round(p * (len(ordered) - 1))])


def interval(values: Iterable[float], level: float = LEVEL, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Percentile-bootstrap interval of the median (Efron and Tibshirani 1993, chapter 13), the same in every run.

    One value gives itself twice: there is nothing to say about its spread, and the number of values shows that.
    """
    x = _checked(values)
    picks = np.random.default_rng(0).integers(0, len(x), (resamples, len(x)))
    low, high = np.quantile(np.median(x[picks], axis=1), ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def summary(values: Iterable[float]) -> dict:
    """{median, low, high, values} of one metric's repetitions."""
    values = [float(v) for v in values]
    low, high = interval(values)
    return {"median": median(values), "low": low, "high": high, "values": values}


def ratio(values: Sequence[float], baseline: Sequence[float]) -> dict:
    """{median, low, high} of values[r] / baseline[r] over the repetitions r that both arms have.

    Repetition r of every arm was taken in round r; an arm that ran fewer rounds has the first ones.
    """
    pairs = list(zip(values, baseline, strict=False))
    if any(b <= 0 for _, b in pairs):
        raise InputError(f"a baseline has to be positive to divide by, got {min(b for _, b in pairs)!r}")
    found = summary(a / b for a, b in pairs)
    return {key: found[key] for key in ("median", "low", "high")}


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive values."""
    x = _checked(values)
    if (x <= 0).any():
        raise InputError(f"a geometric mean needs positive values, got {float(x.min())!r}")
    return float(np.exp(np.log(x).mean()))


@dataclass(frozen=True)
class ReferencePrice:
    """What an hour of a machine costs; only a common scale, because the machine that measures is another one."""

    instance: str
    dollars_per_hour: float
    source: str
    accessed: str

    def per_thousand_tokens(self, seconds: float, tokens: int) -> float:
        """Dollars for 1,000 generated tokens at `seconds` for `tokens` of them."""
        return self.dollars_per_hour / 3600 * seconds / tokens * 1000


PRICE = ReferencePrice(
    instance="AWS c7i.2xlarge, 8 vCPU, 16 GiB, us-east-1, Linux on demand",
    dollars_per_hour=0.357,
    source="AWS on-demand list price (aws.amazon.com/ec2/pricing/on-demand) as quoted by the CacheQuant study",
    accessed="2026-11-29, in that study; not looked up again",
)


@dataclass
class GenerationTiming:
    """Forward passes of one greedy generation, each timed alone; tokenizing and arg max are outside.

    prefill_seconds : pass of the whole prompt, to the logits of its last position; gives the first new token.
    prefill_tokens : length of the prompt.
    token_seconds : pass of each further token.
    """

    prefill_seconds: float
    prefill_tokens: int
    token_seconds: list[float] = field(default_factory=list)

    @property
    def decode_seconds(self) -> float:
        return sum(self.token_seconds)

    @property
    def generated(self) -> int:
        return 1 + len(self.token_seconds)

    @property
    def wall_seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds


@dataclass(frozen=True)
class BenchResult:
    """One generation in the units of the tables; decode figures leave out the first token, which prefill made.

    Decode figures are None when only the first token was made.
    """

    prefill_tok_s: float
    decode_tok_s: float | None
    latency_mean_ms: float | None
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    wall_seconds: float
    cost_per_thousand: float
    generated: int

    @classmethod
    def of(cls, timing: GenerationTiming, price: ReferencePrice = PRICE) -> "BenchResult":
        ms = [1000 * s for s in timing.token_seconds]
        return cls(
            prefill_tok_s=timing.prefill_tokens / timing.prefill_seconds,
            decode_tok_s=len(ms) / timing.decode_seconds if ms else None,
            latency_mean_ms=sum(ms) / len(ms) if ms else None,
            latency_p50_ms=percentile(ms, 0.5) if ms else None,
            latency_p90_ms=percentile(ms, 0.9) if ms else None,
            wall_seconds=timing.wall_seconds,
            cost_per_thousand=price.per_thousand_tokens(timing.wall_seconds, timing.generated),
            generated=timing.generated,
        )


def _checked(values: Iterable[float]) -> np.ndarray:
    x = np.asarray(list(values), np.float64)
    if not x.size:
        raise InputError("no values: a statistic needs at least one repetition")
    if not np.isfinite(x).all():
        raise InputError(f"timings have to be finite, got {x[~np.isfinite(x)][0]!r}")
    return x
