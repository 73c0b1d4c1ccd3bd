"""Figures of the chapter on number formats; each takes a part of its result and an axis, and returns the axis."""

from statistics import fmean

import numpy as np

from cachequant.schemes import BITS
from cachequant.study.figures import style

LEAST = 1 / 256  # bits a value at the left end of a logarithmic axis
RULES = {
    "exact": ("exact", style.BLUE, "o"),
    "exact-fp16": ("exact, fp16", style.SKY, "o"),
    "snap8": ("$2^{k/8}$", style.GREEN, "^"),
    "snap4": ("$2^{k/4}$", style.ORANGE, "v"),
    "snap2": ("$2^{k/2}$", style.PURPLE, "s"),
    "pow2": ("$2^k$", style.RED, "D"),
}
SITES = {
    "qkv": ("into q, k, v", style.BLUE, "o"),
    "output": ("into output", style.GREEN, "s"),
    "up": ("into gate, up", style.ORANGE, "^"),
    "down": ("into down", style.RED, "D"),
}
KINDS = {"gaussian": (style.GREY, "o"), "weights": (style.BLUE, "s"), "activations": (style.RED, "D")}


def error_against_bits(formats: dict, named: str = "exact", ax=None):
    """SNR against bits a value, one line a scale rule, one point a granularity.

    The horizontal axis is logarithmic in the bits spent on scales; one scale a matrix costs none and stands left.
    Granularities are written below the points of the rule `named`.
    """
    ax = ax or style.figure(3.4)[1]
    lowest = min(fmean(f["snr_db"]) for f in formats.values() if f["granularity"] == "tensor")
    for rule, (label, color, marker) in RULES.items():
        rows = [f for f in formats.values() if f["rule"] == rule]
        extra, snr = [max(f["bits"] - BITS, LEAST) for f in rows], [fmean(f["snr_db"]) for f in rows]
        ax.plot(extra, snr, color=color, marker=marker, markersize=4, label=label)
        if rule == named:
            name_points(ax, zip([r["granularity"] for r in rows], extra, snr, strict=True), lowest, (4, -10), color)
    bits_axis(ax, "bits a value, scales counted")
    ax.set_ylabel("SNR, dB")
    ax.margins(y=0.12)
    ax.legend(frameon=False, loc="upper left", labelspacing=0.2, title="scales", alignment="left")
    return ax


def rule_cost(costs: list[dict], ax=None):
    """Loss of a scale rule against exact scales: measured on each kind of numbers, and expected."""
    ax = ax or style.figure(2.8)[1]
    rules = [c["rule"] for c in costs]
    x = np.arange(len(rules))
    expected = [c["expected_db"] for c in costs]
    ax.plot(x, expected, color=style.BLACK, marker="_", markersize=34, linestyle="none", label="expected")
    for shift, (kind, (color, marker)) in zip((-0.15, 0.0, 0.15), KINDS.items(), strict=True):
        ax.plot(x + shift, [c[kind] for c in costs], color=color, marker=marker, linestyle="none", label=kind)
    ax.set(xticks=x, xticklabels=[RULES[r][0] for r in rules], xlabel="scales allowed", ylabel="loss, dB")
    ax.set(xlim=(-0.4, len(rules) - 0.6), ylim=(0, 1.1 * max(expected + [c[k] for c in costs for k in KINDS])))
    ax.legend(frameon=False, loc="upper right", labelspacing=0.3, markerscale=0.7)
    return ax


def prediction(kinds: dict, ax=None):
    """Measured SNR of every format and matrix against what its scales predict."""
    ax = ax or style.figure(3.2)[1]
    ends = []
    for kind, (color, marker) in reversed(KINDS.items()):
        x = [v for f in kinds[kind]["formats"].values() for v in f["predicted_db"]]
        y = [v for f in kinds[kind]["formats"].values() for v in f["snr_db"]]
        ax.plot(x, y, color=color, marker=marker, linestyle="none", markersize=3, alpha=0.5, label=kind)
        ends += [*x, *y]
    ends = [min(ends), max(ends)]
    ax.plot(ends, ends, color=style.BLACK, linewidth=1, label="equal")
    ax.set(xlabel="SNR predicted from the scales, dB", ylabel="SNR measured, dB")
    ax.legend(frameon=False)
    return ax


def outliers_by_layer(rows: list[dict], ax=None):
    """How far the largest value of a row stands above its root mean square, block by block, for the four inputs."""
    ax = ax or style.figure(3.2)[1]
    labels = {}
    for site, (label, color, marker) in SITES.items():
        points = [(r["layer"], r["crest"]) for r in rows if r["site"] == site]
        ax.plot(*zip(*points, strict=True), color=color, marker=marker, markersize=3.5)
        labels[label] = (*points[-1], color)
    ax.set(xlabel="decoder block", ylabel="largest value over RMS of its row", yscale="log")
    plain_ticks(ax.yaxis, (3, 4, 5, 7, 10, 15, 20, 30, 50))
    style.label_lines(ax, labels)
    return ax


def channels(profiles: dict, ax=None):
    """Largest magnitude of each column of an input, sorted, over that of the median column."""
    ax = ax or style.figure(3.2)[1]
    for site, (label, color, _) in SITES.items():
        maxima = np.sort(profiles[site]["maxima"])[::-1]
        ax.plot(np.arange(1, len(maxima) + 1), maxima / np.median(maxima), color=color, label=label)
    ax.axhline(1, color=style.GREY, linewidth=0.8)
    ax.set(xlabel="channel, sorted", ylabel="largest value over median channel's", xscale="log", yscale="log")
    plain_ticks(ax.xaxis, (1, 10, 100, 1000))
    plain_ticks(ax.yaxis, (0.1, 1, 10, 100, 1000))
    ax.legend(frameon=False, loc="upper right")
    return ax


def name_points(ax, points, tensor: float, offset: tuple[float, float], color: str) -> None:
    """Write granularities beside points, `offset` points away.

    Parameters
    ----------
    points : of (granularity, x, y).
    tensor : height at which ``tensor`` is written, where the points of all rules stand above each other.
    """
    for granularity, x, y in points:
        alone = granularity == "tensor"
        place = {"textcoords": "offset points", "color": "#444444" if alone else color, "fontsize": 8}
        text = granularity.removeprefix("block")
        ax.annotate(text, (x, tensor if alone else y), offset, path_effects=style.HALO, **place)


def bits_axis(ax, label: str) -> None:
    """Horizontal axis of bits a value, logarithmic in those above 8 and labelled with all of them."""
    ticks = (LEAST, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1, 2)
    ax.set(xscale="log", xlabel=label, xlim=(LEAST / 1.3, 4.5))
    ax.set_xticks(ticks, [f"{BITS + t if t > LEAST else BITS:.3g}" for t in ticks])
    ax.set_xticks([], minor=True)


def plain_ticks(axis, ticks: tuple) -> None:
    """Ticks of a logarithmic axis as plain numbers, those that its limits show."""
    low, high = axis.get_view_interval()
    shown = [t for t in ticks if low <= t <= high]
    axis.set_ticks(shown, [f"{t:,g}" for t in shown])
    axis.set_ticks([], minor=True)
