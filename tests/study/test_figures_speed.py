"""Figures show every arm that ran, its value as text, labelled axes; nothing about arms that did not run."""

import matplotlib
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.text import Text

from cachequant.study.figures import diagram, kernels, speed, style

SPEEDS = {"transformers-fp32": 10.0, "fp32": 20.0, "int8": 40.0}


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def cell(value):
    return {"median": value, "low": 0.9 * value, "high": 1.1 * value, "values": [value]}


def bench(scale=1.0):
    arms = {
        arm: {
            "prefill_tok_s": cell(30 * v * scale),
            "decode_tok_s": cell(v * scale),
            "latency_p50_ms": cell(1000 / v),
            "latency_p90_ms": cell(1100 / v),
            "cost_per_thousand": cell(0.1 / v),
        }
        for arm, v in SPEEDS.items()
    }
    ratios = {
        f"{a}/{b}": {m: cell(arms[a][m]["median"] / arms[b][m]["median"]) for m in ("prefill_tok_s", "decode_tok_s")}
        for a in arms
        for b in arms
        if a != b
    }
    return {"arms": arms, "ratios": ratios, "missing": ["transformers-bf16"]}


def texts(ax):
    return [t.get_text() for t in ax.texts]


def names(ax):
    return [t.get_text() for t in ax.get_yticklabels()]


def test_throughput_has_a_row_a_workload_and_a_bar_an_arm():
    axes = speed.throughput({"short": bench(), "long": bench(2)}, order=["int8", "transformers-bf16", "fp32"])
    assert axes.shape == (2, 2)
    assert names(axes[0, 0]) == ["int8", "fp32"]
    assert [p.get_width() for p in axes[1, 1].patches] == [80, 40]
    assert texts(axes[0, 1]) == ["40", "20"]
    assert all("tokens/s" in ax.get_xlabel() for ax in axes.ravel())


def test_latency_names_both_percentiles():
    (ax,) = speed.latency({"short": bench()})
    assert names(ax) == list(SPEEDS)
    assert texts(ax)[0] == "100 to 110"
    assert "90th percentile" in ax.get_xlabel()


def test_cost_is_in_dollars():
    (ax,) = speed.cost({"short": bench()})
    assert texts(ax) == ["0.0100", "0.0050", "0.0025"]
    assert "dollars" in ax.get_xlabel()


def test_sweep_labels_each_line_once():
    axes = speed.sweep({"smollm2-135m": {"8": bench(), "128": bench(0.9)}})
    assert sorted(texts(axes[0, 1])) == sorted(SPEEDS)
    assert len(axes[0, 0].lines) == len(SPEEDS)
    assert [t.get_text() for t in axes[0, 0].get_xticklabels()] == ["8", "128"]


def test_ratio_leaves_out_the_baseline_and_draws_one():
    axes = speed.ratio({"smollm2-135m": {"8": bench(), "128": bench()}}, "transformers-fp32")
    assert sorted(texts(axes[0, 1])) == ["fp32", "int8"]
    level = axes[0, 0].lines[0].get_ydata()
    assert list(level) == [1, 1]
    assert list(axes[0, 0].lines[1].get_ydata()) == [2, 2]


def test_bytes_per_token_gives_the_share_of_the_head():
    ax = speed.bytes_per_token({"fp32": {"blocks": 300e6, "head": 100e6}, "int8": {"blocks": 75e6, "head": 100e6}})
    assert texts(ax) == ["400 MB, head 25%", "175 MB, head 57%"]


def test_ladder_is_logarithmic_and_in_order():
    ax = kernels.ladder({"triple loop": cell(1), "SIMD": cell(200)})
    assert names(ax) == ["triple loop", "SIMD"] and ax.get_xscale() == "log"
    assert texts(ax) == ["1", "200"]


def test_layers_compares_with_the_first_arm():
    rows = {"q": {"torch-fp32": 4.0, "int8": 2.0}, "down": {"torch-fp32": 3.0, "int8": 6.0}}
    axes = kernels.layers({"1": rows, "270": rows}, ["torch-fp32", "int8"])
    assert texts(axes[0]) == ["2.0", "0.5"]
    assert [ax.get_title(loc="left") for ax in axes] == ["one token", "270 tokens at once"]


def test_stages_are_shares_of_the_total():
    ax = kernels.stages({"int8": {"quantize": 1e-4, "multiply": 3e-4}})
    assert texts(ax) == ["25%", "75%", "400 µs"]


def test_streaming_tells_cache_from_memory():
    ax = kernels.streaming({"int8": {"hot": 60.0, "cold": 15.0}}, bandwidth=16.0)
    assert texts(ax) == ["15 cold, 60 hot", "memory"]


def test_roofline_labels_roofs_and_arms():
    points = [{"arm": "int8", "tokens": m, "intensity": 2.0 * m, "gops": min(200, 30 * m)} for m in (1, 64)]
    ax = kernels.roofline(points, {"int8": 220.0}, bandwidth=16.0)
    assert texts(ax) == ["int8 220", "memory 16 GB/s"]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["int8"]


def test_climb_names_every_rung_once_under_both_roofs():
    many = {"loop": cell(1.0) | {"intensity": 100.0}, "SIMD": cell(90.0) | {"intensity": 100.0}}
    ax = kernels.climb(many, {"SIMD": cell(20.0) | {"intensity": 2.0}}, {"int8 registers": 220.0}, bandwidth=16.0)
    assert sorted(texts(ax)) == ["SIMD", "int8 registers 220", "loop", "memory 16 GB/s"]
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 1 and hollow[0].get_color() == next(
        line.get_color() for line in ax.lines if list(line.get_ydata()) == [90.0]
    )


def test_scaling_marks_what_is_only_a_model():
    measured = {"int8": {n: {m: cell(10.0 * int(n)) for m in speed.PHASES} for n in ("1", "2")}}
    modelled = {"int8": {n: dict.fromkeys(speed.PHASES, 9.0 * n) for n in (1, 2, 4, 8)}}
    axes = speed.scaling(measured, modelled)
    for ax in axes:
        full, dashed = ax.lines
        assert list(full.get_ydata()) == [10, 20] and list(dashed.get_ydata()) == [9, 18, 36, 72]
        assert "model" in texts(ax) and ax.get_xlabel() == "threads"
        assert 2 < ax.patches[0].get_x() < 4
    assert "int8" in texts(axes[1])


def test_short_prompts_have_a_line_for_tokens_one_by_one():
    sweep = {n: {"int8": cell(0.01 + 0.001 * int(n))} for n in ("1", "6", "7")}
    ax = speed.short_prompts(sweep, {n: {"int8": cell(0.01 * int(n))} for n in ("1", "4", "32")})
    once, steps = ax.lines
    assert list(once.get_xdata()) == [1, 6, 7] and list(steps.get_xdata()) == [1, 4]
    assert {"int8", "int8, one by one"} <= set(texts(ax))


def test_diagram_counts_and_marks_the_quantized_matrices():
    sizes = {"qkv": (96, 32), "o": (32, 32), "up": (128, 32), "down": (32, 128)}
    matrices = [{"name": f"layers.0.x.{n}", "out": o, "in": i} for n, (o, i) in sizes.items()]
    shape = {"title": "tiny", "family": "gpt2", "layers": 2, "vocab": 50, "width": 32, "quantized": 8}
    ax = diagram.decoder_block(shape | {"block_matrices": matrices})
    assert "8 matrices" in ax.get_title()
    assert {"qkv\n96×32", "down\n32×128", "×2", "LayerNorm"} <= set(texts(ax))


def test_lengths_that_lie_close_are_labelled_where_they_fit():
    lengths = {n: bench() for n in ("1", "8", "32", "128", "512", "600")}
    labels = [t.get_text() for t in speed.sweep({"smollm2-135m": lengths})[0, 0].get_xticklabels()]
    assert labels[0] == "1" and labels[-1] == "600" and labels[-2] == ""
    assert len(labels) == len(lengths)


def test_names_of_points_stand_apart_in_one_column():
    fig, ax = style.figure()
    ax.set(xlim=(0, 1), ylim=(0, 1))
    style.label_points(ax, {name: (0.5, 0.5 + i / 100, style.BLUE) for i, name in enumerate("abcd")})
    fig.canvas.draw()
    boxes = sorted((Text.get_window_extent(t) for t in ax.texts), key=lambda box: box.y0)  # without the lines
    assert len({round(box.x0) for box in boxes}) == 1
    assert np.diff([box.y0 for box in boxes]).min() > 10 * fig.dpi / 72


@pytest.mark.parametrize(
    "wanted,places",
    [([], []), ([3], [3]), ([0, 20], [0, 20]), ([5, 5], [0, 10]), ([0, 30, 31, 32], [0, 21, 31, 41])],
)
def test_spread_keeps_a_distance_and_moves_little(wanted, places):
    assert style.spread(wanted, 10) == pytest.approx(places)


def test_lines_that_end_together_get_labels_apart():
    fig, ax = style.figure()
    ax.set(xlim=(0, 1), ylim=(0, 1))
    style.label_lines(ax, {"a": (1, 0.5, style.BLUE), "b": (1, 0.5, style.RED), "c": (1, 0.51, style.GREEN)})
    fig.canvas.draw()
    heights = sorted(t.get_window_extent().y0 for t in ax.texts)
    assert np.diff(heights).min() > 10 * fig.dpi / 72
