"""Figures of the chapter on compressed keys and values draw from small made-up results and show what they are given."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from cachequant.study import distortion, kv_rows
from cachequant.study.figures import kv


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture
def shapes():
    edges = np.linspace(-8, 8, 17)
    density = np.exp(-(((edges[1:] + edges[:-1]) / 2) ** 2) / 2)
    stages = {stage: {"density": density.tolist()} for stage in kv.STAGES}
    channels = {"raw": [1.0, 9.0, 1.0], "rotated": [5.0, 5.0, 5.0]}
    return {"edges": edges.tolist(), "sides": {"keys": stages, "values": stages}, "loudest": {"channels": channels}}


@pytest.fixture
def pages():
    values = {"fp16": 0.0, "int8": 0.01, "k4v4": 0.4, "k4v4/none": 0.9, "k3v3": 2.0, "k2v2": 15.0, "k3v3,0:k4v4": 1.0}
    bits = {"fp16": 16, "int8": 8.25, "k3v3": 3.25, "k2v2": 2.25, "k3v3,0:k4v4": 3.3}
    return [
        {"pages": n, "bits": bits.get(n, 4.25), "delta_percent": {"value": v, "low": v - 0.05, "high": v + 0.05}}
        for n, v in values.items()
    ]


def bench(arms, seconds):
    found = {}
    for i, arm in enumerate(arms):
        speed = 1 / (seconds * (i + 1))
        found[arm] = {"speed": {"median": speed, "low": 0.9 * speed, "high": 1.1 * speed}}
    return {"arms": found}


def texts(ax):
    return {t.get_text() for t in ax.texts}


def test_channels_and_histograms(shapes):
    ax = kv.channels(shapes["loudest"])
    assert len(ax.lines) == 2
    upper, lower = kv.histograms(shapes)
    assert (upper.get_title(loc="left"), lower.get_title(loc="left")) == ("keys", "values")
    assert len(upper.lines) == 4 and upper.get_yscale() == "log"


def test_distortion_shows_the_bound_below_the_codes():
    rows = distortion.gaussian(64)
    ax = kv.distortion(rows)
    bound = ax.lines[0]
    assert np.allclose(bound.get_ydata(), 2.0 ** (-2 * bound.get_xdata()))
    for line in ax.lines[2:]:
        assert (line.get_ydata() > 2.0 ** (-2 * np.array(line.get_xdata()))).all()


def test_every_page_format_has_its_name(pages):
    ax = kv.against_bits(pages, kv_rows.front(pages))
    assert {p["pages"] for p in pages} <= texts(ax)
    assert ax.get_ylim()[1] > 15.05


def test_stages_stand_in_order():
    rows = [{"stage": f"part {i}", "output": 1 / (i + 1)} for i in range(3)]
    ax = kv.stages({"k4v4": rows, "k2v2": rows})
    assert [t.get_text() for t in ax.get_yticklabels()] == ["part 0", "part 1", "part 2"]
    assert list(ax.lines[0].get_ydata()) == [2, 1, 0]


def test_layers():
    rows = [{"layer": i, "mean": 1 - 0.01 * (i + 1)} for i in range(3)]
    assert {"k4v4", "k2v2/none"} <= texts(kv.by_layer({"k4v4": rows, "k2v2/none": rows}))
    ax = kv.sensitivity([{"layer": i, "keys": 0.1 * (i + 1), "values": 0.01} for i in range(3)])
    assert {line.get_label() for line in ax.lines} == {"keys", "values"}


def test_sparse_values_name_their_mass():
    rows = [{"mass": m, "read": m / 2, "error": 1 - m + 1e-4, "error_plain": 1.1 - m} for m in (0.9, 0.99)]
    assert texts(kv.sparse(rows)) == {"90 %", "99 %"}


def test_memory_and_times_label_their_lines():
    rows = [
        {"kv": k, "context": n, "bytes": {"pages": n * b}} for k, b in (("fp32", 9), ("k4v4", 2)) for n in (64, 128)
    ]
    assert texts(kv.memory(rows)) == {"fp32", "k4v4"}
    benches = {"64": bench(["sdpa-fp32", "kv-k4v4"], 1e-3), "1024": bench(["sdpa-fp32", "kv-k4v4"], 5e-3)}
    ax = kv.attention_time(benches)
    assert texts(ax) == {"sdpa-fp32", "kv-k4v4"}
    ax = kv.decode_time({"64": bench(["int8", "int8/k4v4"], 1e-2), "1024": bench(["int8", "int8/k4v4"], 2e-2)})
    assert texts(ax) == {"int8", "int8/k4v4"} and ax.get_ylim()[0] == 0
    ax = kv.decode_time({"64": bench(["int8"], 1e-2)}, looks=lambda arm: (kv.style.SKY, "P"))
    assert ax.lines[0].get_color() == kv.style.SKY


def test_looks_are_those_of_the_format():
    assert kv.look("kv-k4v4") == kv.look("k4v4") and kv.look("k4v4/none")[1] == "x"
    assert kv.look("k4v4/none")[0] == kv.look("k4v4")[0]
    assert kv.look("sdpa-fp32") != kv.look("sdpa-fp16")
    assert kv.look("k4v2") == (kv.style.GREY, "X")
