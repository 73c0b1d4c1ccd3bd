"""The figures and rows of the chapter on the prefix cache, on results of a tiny model."""

from dataclasses import asdict

import matplotlib
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from cachequant.assets import models
from cachequant.study import break_even, conversations, eviction, growth, prefix_bench, reuse
from cachequant.study.figures import prefix, tree
from cachequant.study.results import Result
from helpers import random_model

MODEL = random_model(context=600)


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def texts(ax):
    return [t.get_text() for t in ax.texts]


@pytest.fixture(scope="module")
def result():
    talks = conversations.SETS["multi_turn"].part(["france", "python"], 3)
    measure = lambda name, logits="last": prefix_bench.measure({"": MODEL}, name, repeats=2, logits=logits)  # noqa: E731
    data = {
        "one_shot": {"tiny": {"high_reuse": measure("high_reuse")}},
        "multi_turn": measure(talks),
        "all_positions": {"high_reuse": measure("high_reuse", "all"), "multi_turn": measure(talks, "all")},
        "random": {"tiny": True},
        "break_even": break_even.measure(MODEL, [0, 8, 40], repeats=2),
        "eviction": eviction.measure([40, 80], 200),
        "capacity": {
            "budget_mb": 1,
            "rows": [
                {"kv": kv, "shared": shared, "tokens": tokens + shared}
                for kv, tokens in (("fp32", 100), ("k4v4", 500))
                for shared in (0, 32)
            ],
        },
        "stress": [
            {"case": "empty", "outcome": "refused", "right": right, "detail": "is empty", "seconds": 0.1}
            for right in (True, False)
        ],
    }
    return Result("08_prefix_cache", "local", {}, {}, data)


@pytest.fixture(scope="module")
def steps():
    return [asdict(step) for step in growth.grow(models.resolve("smollm2-135m"))]


def test_the_example_tree(steps):
    assert [(s["prompt"], s["matched"], s["evicted"]) for s in steps] == [
        (62, 0, 0),
        (68, 62, 0),
        (60, 36, 0),
        (9, 5, 1),
    ]
    story = steps[0]["nodes"]
    assert [(n["tokens"], n["parent"], n["new"]) for n in story] == [(32, None, True), (30, story[0]["page"], True)]
    assert "".join(n["text"] for n in story) == growth.STORIES[0]
    assert [n["tokens"] for n in steps[1]["gone"]] == [30]  # a longer page begins with it
    assert len(steps[-1]["nodes"]) == 4


def test_the_drawing_has_a_box_a_page(steps):
    axes = tree.growth(steps)
    for ax, step in zip(axes, steps, strict=True):
        assert len(ax.patches) == len(step["nodes"]) + len(step["gone"])
        assert f"{step['prompt']} tokens asked for, {step['matched']} found" in ax.get_title("left")
    assert "The cat sat … cooling\n32 tokens" in texts(axes[0])
    corners = [patch.get_bbox() for patch in axes[3].patches]
    assert len({(box.x0, box.y0) for box in corners}) == len(corners)


def test_requests_and_turns(result):
    ax = prefix.requests(result.data["one_shot"]["tiny"])[0]
    assert len(ax.patches) == 10
    assert [t.get_text() for t in ax.get_xticklabels()][:2] == ["0 of\n23", "19 of\n26"]
    top, bottom = prefix.turns(result.data["multi_turn"])
    assert set(texts(top)) == {"no-cache", "cache", "bound"}
    assert list(bottom.lines[0].get_ydata())[0] == 0


def test_the_other_figures(result):
    ax = prefix.break_even(result.data["break_even"])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "8", "40"]
    pairs = reuse.conventions(result)
    assert list(pairs) == ["high_reuse", "multi_turn"]
    assert len(prefix.accounting(pairs).patches) == 4
    assert len(texts(prefix.eviction(result.data["eviction"]))) == 2
    rows = [{"kv": kv, "budget_mb": mb, "hit_rate": 0.01 * mb} for kv in ("fp32", "k4v4") for mb in (10, 50)]
    ax = prefix.stream({"rows": rows, "unlimited": 0.8})
    assert set(texts(ax)) == {"fp32", "k4v4"}
    assert list(ax.lines[0].get_ydata()) == [10, 50]


def test_rows(result):
    (row,) = reuse.sets(result)
    assert (row["model"], row["set"], row["prompts"], row["tokens"]) == ("tiny (random weights)", "high_reuse", 5, 122)
    assert [r["turn"] for r in reuse.turns(result)] == [1, 2, 3]
    assert len(reuse.benches(result)) == 4
    assert reuse.capacity(result)[1] == {
        "kv": "k4v4", "alone": 500, "alone_times": 5, "shared": 532, "shared_times": 532 / 132,
    }  # fmt: skip
    assert reuse.stressed(result)[0]["right"] == "1 of 2"


@pytest.mark.parametrize(
    ("lows", "words"),
    [
        ([0.9, 1.1, 1.2], "from 8 tokens on"),
        ([1.1, 0.9, 1.2], "from 40 tokens on"),
        ([1.1, 1.1, 1.2], "from 0 tokens on"),
        ([0.9, 1.1, 0.9], "not even"),
    ],
)
def test_from_where_on_it_pays(lows, words):
    rows = [
        {"prefix": n, "ratios": {"cache/no-cache": {"speed": {"low": low}}}}
        for n, low in zip((0, 8, 40), lows, strict=True)
    ]
    assert reuse.pays(rows).startswith(words)


def test_a_second_request_finds_the_prefix():
    for row in break_even.measure(MODEL, [0, 8, 33], repeats=1):
        assert row["prefix"] <= row["matched"] <= row["prefix"] + 2
        assert row["prompt"] == row["prefix"] + 8
