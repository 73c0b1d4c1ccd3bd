"""Figures of the chapters on both optimizations at once and on sessions show what they are given."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from cachequant.study.figures import combined, sessions


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def cell(value):
    return {"median": value, "low": 0.9 * value, "high": 1.1 * value}


def texts(ax):
    return {t.get_text() for t in ax.texts}


def forks():
    return [
        {
            "tokens": tokens, "format": name, "place": place, "recomputed": 31 * (name == "k4v4" and place == "inside"),
            "fork": cell(tokens / 1e4), "first": cell(50.0), "step": cell(40.0),
        }
        for tokens in (276, 1000) for name in ("fp32", "k4v4") for place in ("end", "inside")
    ]  # fmt: skip


def test_forks_are_drawn_by_format():
    ax = sessions.fork_time(forks(), "end")
    assert texts(ax) == {"fp32", "k4v4"}
    assert [t.get_text() for t in ax.get_xticklabels()] == ["276", "1,000"]


def test_first_steps_name_the_tokens_that_are_computed_again():
    ax = sessions.first_step([r for r in forks() if r["tokens"] == 1000])
    assert len(ax.patches) == 8
    assert texts(ax) == {"31 tokens again"}


def test_pages_are_drawn_as_shared_or_own():
    ax = sessions.pages([[0, 1, 2], [0, 1, 3], [0, 4]])
    own = [p.get_facecolor() for p in ax.patches]
    assert len(own) == 8
    assert len({own[i] for i in (2, 5, 7)}) == 1 and own[2] != own[0]
    assert texts(ax) == {"0", "1", "2", "3", "4"}


def test_shared_bytes_stand_beside_copies():
    rows = [{"format": "fp32", "branches": n, "shared": 10 + n, "separate": 10 * n} for n in (1, 4)]
    assert texts(sessions.shared_bytes(rows)) == {"fp32", "fp32, copies"}


def test_restoring_stands_beside_running_again():
    rows = [{"tokens": n, "format": "k4v4", "next": cell(n / 1e4), "prefill": cell(n / 1e3)} for n in (276, 1000)]
    assert texts(sessions.restore(rows)) == {"k4v4, from the file", "k4v4, run again"}


def test_gains_are_drawn_beside_their_product():
    rows = [
        {
            "set": name, "variant": "int8", "scheme": cell(2.0), "pages": None, "cache": cell(3.0),
            "product": cell(6.0), "joint": cell(4.5), "kept": cell(0.75),
        }
        for name in ("high_reuse", "no_reuse")
    ]  # fmt: skip
    axes = combined.gains(rows)
    assert [ax.get_title(loc="left") for ax in axes] == ["high_reuse", "no_reuse"]
    assert texts(axes[0]) == {"kept 0.75"}


def test_requests_are_split_at_the_first_token():
    rows = [
        {"set": "high_reuse", "variant": "int8", "reuse": r, "first": cell(20.0), "request": cell(120.0)}
        for r in ("yes", "no")
    ]
    (ax,) = combined.seconds(rows)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["int8, reuse", "int8"]
    assert sorted(p.get_width() for p in ax.patches) == [20, 20, 120, 120]


def test_differences_of_zero_are_on_the_axis():
    rows = [
        {"engine": engine, "scheme": "int8", "split": "9+2", "differences": values}
        for engine, values in (("this decoder", [0.0, 0.0]), ("transformers", [1e-5, 0.9]))
    ]
    (ax,) = combined.differences(rows)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["int8, HF", "all, this decoder"]
    assert ax.get_xlim()[0] < 0 < 0.9 < ax.get_xlim()[1]
