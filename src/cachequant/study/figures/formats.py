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


def error_against_bits(formats: dict, ax=None):
    """SNR against bits a value, one line a scale rule, one point a granularity.

    The horizontal axis is logarithmic in the bits spent on scales; one scale a matrix costs none and stands left.
    """
    ax = ax or style.figure(3.4)[1]
    for rule, (label, color, marker) in RULES.items():
        rows = [f for f in formats.values() if f["rule"] == rule]
        extra, snr = [max(f["bits"] - BITS, LEAST) for f in rows], [fmean(f["snr_db"]) for f in rows]
        ax.plot(extra, snr, color=color, marker=marker, markersize=4, label=label)
        if rule == "exact":
            for x, y, row in zip(extra, snr, rows, strict=True):
                text = row["granularity"].removeprefix("block")
                ax.annotate(text, (x, y), (4, -10), textcoords="offset points", color=color, fontsize=8)
    ticks = (LEAST, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1, 2)
    ax.set(xscale="log", xlabel="bits a value, scales counted", ylabel="SNR, dB", xlim=(LEAST / 1.3, 4.5))
    ax.set_xticks(ticks, [f"{BITS + t if t > LEAST else BITS:.3g}" for t in ticks])
    ax.set_xticks([], minor=True)
    ax.margins(y=0.12)
    ax.legend(frameon=False, loc="upper left", labelspacing=0.2, title="scales", alignment="left")
    return ax


def rule_cost(costs: list[dict], ax=None):
    """Loss of a scale rule against exact scales: measured on each kind of numbers, and expected."""
    ax = ax or style.figure(2.8)[1]
    rules = [c["rule"] for c in costs]
    x = np.arange(len(rules))
    ax.plot(x, [c["expected_db"] for c in costs], color=style.BLACK, marker="_", markersize=26, linestyle="none")
    kinds = {"gaussian": (style.GREY, "o"), "weights": (style.BLUE, "s"), "activations": (style.RED, "D")}
    for shift, (kind, (color, marker)) in zip((-0.15, 0.0, 0.15), kinds.items(), strict=True):
        ax.plot(x + shift, [c[kind] for c in costs], color=color, marker=marker, linestyle="none")
        last = (x[0] + shift, costs[0][kind])
        ax.annotate(
            kind, last, (12, 14 * (shift > 0) - 14 * (shift < 0)), textcoords="offset points", color=color, va="center"
        )
    ax.annotate("expected", (x[-1], costs[-1]["expected_db"]), (0, 10), textcoords="offset points", ha="center")
    ax.set(xticks=x, xticklabels=[RULES[r][0] for r in rules], xlabel="scales allowed", ylabel="loss, dB")
    ax.set(xlim=(-0.4, len(rules) - 0.5), ylim=(0, None))
    ax.margins(y=0.15)
    return ax


def prediction(kinds: dict, ax=None):
    """Measured SNR of every format and matrix against what its scales predict."""
    ax = ax or style.figure(3.2)[1]
    looks = {"activations": (style.RED, "D"), "weights": (style.BLUE, "s"), "gaussian": (style.GREY, "o")}
    ends = []
    for kind, (color, marker) in looks.items():
        x = [v for f in kinds[kind]["formats"].values() for v in f["predicted_db"]]
        y = [v for f in kinds[kind]["formats"].values() for v in f["snr_db"]]
        ax.plot(x, y, color=color, marker=marker, linestyle="none", markersize=3, alpha=0.5, label=kind)
        ends += [*x, *y]
    ends = [min(ends), max(ends)]
    ax.plot(ends, ends, color=style.BLACK, linewidth=1)
    ax.set(xlabel="SNR predicted from the scales, dB", ylabel="SNR measured, dB")
    ax.legend(frameon=False)
    return ax


def outliers_by_layer(rows: list[dict], measure: str = "crest", ax=None):
    """How far the largest value stands out, layer by layer, for the four inputs of a block."""
    ax = ax or style.figure(3.2)[1]
    labels = {}
    for site, (label, color, marker) in SITES.items():
        points = [(r["layer"], r[measure]) for r in rows if r["site"] == site]
        ax.plot(*zip(*points, strict=True), color=color, marker=marker, markersize=3.5)
        labels[label] = (*points[-1], color)
    names = {
        "crest": "largest value over RMS of its row",
        "max_over_median": "largest over median magnitude",
        "kurtosis": "kurtosis",
    }
    ax.set(xlabel="layer", ylabel=names[measure], yscale="log")
    style.label_lines(ax, labels)
    return ax


def channels(profiles: dict, ax=None):
    """Largest magnitude of each column of an input, sorted, over that of the median column."""
    ax = ax or style.figure(3.2)[1]
    labels = {}
    for site, (label, color, _) in SITES.items():
        maxima = np.sort(profiles[site])[::-1]
        share = maxima / np.median(maxima)
        ax.plot(np.arange(1, len(share) + 1), share, color=color)
        labels[label] = (1, share[0], color)
    ax.axhline(1, color=style.GREY, linewidth=0.8)
    ax.set(xlabel="channel, sorted", ylabel="largest value over median channel's", xscale="log", yscale="log")
    for text, (x, y, color) in labels.items():
        ax.annotate(text, (x, y), (6, 4), textcoords="offset points", color=color, fontsize=8.5)
    return ax
