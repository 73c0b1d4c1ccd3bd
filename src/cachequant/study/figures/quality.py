"""Figures of the chapter on quality; each takes rows of its result and an axis, and returns the axis.

A row is one scheme: {scheme, bits, delta_percent: {value, low, high}, top1, kl, ...}, the change of perplexity against
float32 on the same tokens with its paired bootstrap interval.
"""

from statistics import fmean

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm, SymLogNorm

from cachequant.schemes import BITS
from cachequant.study.figures import style
from cachequant.study.figures.formats import LEAST, RULES, bits_axis, name_points, plain_ticks

SMALLEST = 0.1  # percent: changes below it are drawn on a linear scale, as they may be negative
GRANULARITIES = ("tensor", "row", "block256", "block128", "block64", "block32", "block16")

SCHEMES = style.ARMS | {
    "int8-block32": (style.SKY, "s"),
    "bfp8-row": (style.RED, "v"),
    "w8": (style.BLACK, "^"),
    "bfp8-w": (style.RED, "^"),
    "w8a16": (style.ORANGE, "p"),
    "int8-hadamard-x128": (style.PURPLE, "H"),
}


def _look(scheme: str) -> tuple[str, str]:
    """Colour and marker of a scheme: those of its arm, one of these, grey for all others."""
    return SCHEMES.get(scheme, (style.GREY, "X"))


def _percent_axis(axis, ax, rows: list[dict]) -> None:
    """Symmetric-logarithmic axis of perplexity changes with plain numbers."""
    ends = [e for r in rows for e in (r["delta_percent"]["low"], r["delta_percent"]["high"])]
    low, high = min(*ends, 0) * 1.5 - 0.02, max(*ends, 2 * SMALLEST) * 1.6
    if axis == "y":
        ax.set_yscale("symlog", linthresh=SMALLEST)
        ax.set_ylim(low, high)
        ticks, target = ax.set_yticks, "change of perplexity, %"
        ax.set_ylabel(target)
    else:
        ax.set_xscale("symlog", linthresh=SMALLEST)
        ax.set_xlim(low, high)
        ticks = ax.set_xticks
        ax.set_xlabel("change of perplexity, %")
    steps = (-100, -10, -1, 0, 1, 10, 100)
    if low > -3:
        steps = (-1, -0.3, 0, 0.3, 1, 3, 10, 30, 100) if low <= -SMALLEST else (0, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
    shown = [t for t in steps if low <= t <= high]
    ticks(shown, [f"{t:g}".replace("-", "\N{MINUS SIGN}") for t in shown])
    ticks([], minor=True)


def changes(rows: list[dict], ax=None):
    """Change of perplexity of each scheme with its interval, best on top."""
    ordered = sorted(rows, key=lambda r: -r["delta_percent"]["value"])
    ax = ax or style.figure(0.8 + 0.24 * len(rows))[1]
    for y, row in enumerate(ordered):
        delta, (color, marker) = row["delta_percent"], _look(row["scheme"])
        ax.plot([delta["low"], delta["high"]], [y, y], color=color)
        ax.plot(delta["value"], y, marker, color=color)
    ax.axvline(0, color=style.BLACK, linewidth=0.8)
    _percent_axis("x", ax, rows)
    ax.set(yticks=range(len(rows)), yticklabels=[r["scheme"] for r in ordered], ylim=(-0.6, len(rows) - 0.4))
    return ax


def against_bits(rows: list[dict], ax=None):
    """Divergence from float32 against bits a weight: one line a scale rule, one point a granularity.

    Bars are the intervals of the divergence; the horizontal axis is logarithmic in the bits spent on scales.
    """
    ax = ax or style.figure(3.4)[1]
    highest = max((r["kl"] for r in rows if r["granularity"] == "tensor"), default=0)
    for rule, (label, color, marker) in RULES.items():
        points = [r for r in rows if r["rule"] == rule]
        points.sort(key=lambda r: GRANULARITIES.index(r["granularity"]))
        if not points:
            continue
        bits, kl = [max(r["bits"] - BITS, LEAST) for r in points], np.array([r["kl"] for r in points])
        ends = [r["intervals"]["kl"] for r in points]
        reach = [np.maximum(kl - [e["low"] for e in ends], 0), np.maximum([e["high"] for e in ends] - kl, 0)]
        ax.errorbar(bits, kl, yerr=reach, color=color, marker=marker, markersize=4, elinewidth=0.8, label=label)
        if rule == "exact":
            name_points(ax, zip([r["granularity"] for r in points], bits, kl, strict=True), highest, (5, 4), color)
    bits_axis(ax, "bits a weight, scales counted")
    ax.set(yscale="log", ylabel="divergence, nats a token")
    plain_ticks(ax.yaxis, (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3))
    ax.legend(frameon=False, loc="upper right", labelspacing=0.2, title="scales", alignment="left")
    return ax


def against_speed(rows: list[dict], metric: str = "decode", ax=None):
    """Change of perplexity against speed over fp32, one point a scheme; right and low is better.

    Rows without a speed are left out; fp32 itself stands at 1 and 0.
    """
    ax = ax or style.figure(3.4)[1]
    rows = [r for r in rows if r.get(f"{metric}_ratio")]
    for row in rows:
        speed, delta = row[f"{metric}_ratio"], row["delta_percent"]
        color, marker = _look(row["scheme"])
        ax.plot([speed["low"], speed["high"]], [delta["value"]] * 2, color=color, linewidth=1)
        ax.plot([speed["median"]] * 2, [delta["low"], delta["high"]], color=color, linewidth=1)
        ax.plot(speed["median"], delta["value"], marker, color=color)
    ax.plot(1, 0, "o", color=style.BLACK)
    fastest = max(r[f"{metric}_ratio"]["high"] for r in rows)
    ax.set(xlabel=f"{metric} speed, times that of fp32", xlim=(0.8, 1.05 * fastest))
    _percent_axis("y", ax, rows)
    ends = {r["scheme"]: (r[f"{metric}_ratio"]["high"], r["delta_percent"]["value"]) for r in rows} | {"fp32": (1, 0)}
    style.label_points(ax, {name: (*end, _look(name)[0]) for name, end in ends.items()})
    return ax


def grid(rows: list[dict], ax=None):
    """Heat map of the change of perplexity: granularity down, scale rule across, the number in each cell."""
    ax = ax or style.figure(3.2)[1]
    rules = [r for r in RULES if any(row["rule"] == r for row in rows)]
    sizes = [g for g in GRANULARITIES if any(row["granularity"] == g for row in rows)]
    cells = np.full((len(sizes), len(rules)), np.nan)
    for row in rows:
        cells[sizes.index(row["granularity"]), rules.index(row["rule"])] = row["delta_percent"]["value"]
    largest = max(np.nanmax(cells), 2 * SMALLEST)
    norm = LogNorm(SMALLEST, largest, clip=True) if np.nanmin(cells) > 0 else SymLogNorm(SMALLEST, vmin=0, vmax=largest)
    colors = colormaps["cividis_r"]
    ax.imshow(cells, cmap=colors, norm=norm, aspect="auto")
    for (i, j), value in np.ndenumerate(cells):
        if np.isfinite(value):
            dark = _luminance(colors(norm(value))) < 0.18  # there white and black text have the same contrast
            text = f"{value:+.{2 if abs(value) < 10 else 0}f}".replace("-", "\N{MINUS SIGN}")
            ax.text(j, i, text, ha="center", va="center", color="white" if dark else "black", fontsize=9)
    ax.set(xticks=range(len(rules)), xticklabels=[RULES[r][0] for r in rules], xlabel="scales allowed")
    ax.set(yticks=range(len(sizes)), yticklabels=[s.replace("block", "block ") for s in sizes])
    ax.grid(visible=False)
    ax.tick_params(length=0)
    return ax


def _luminance(color: tuple) -> float:
    """Relative luminance of an sRGB colour, 0 to 1 (WCAG 2)."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def divergence(rows: list[dict], ax=None):
    """Share of prompts whose greedy text is still that of fp32 after n new tokens."""
    ax = ax or style.figure(3.0)[1]
    labels = {}
    for row in rows:
        agreed, length = np.array(row["agreed"]), row["new_tokens"]
        n = np.arange(length + 1)
        share = 100 * (agreed[None] >= n[:, None]).mean(1)
        color = _look(row["scheme"])[0]
        ax.step(n, share, where="post", color=color)
        labels[row["scheme"]] = (length, share[-1], color)
    ax.set(xlabel="new tokens", ylabel="prompts with fp32's text, %", ylim=(0, 104), xlim=(0, None))
    style.label_lines(ax, labels)
    return ax


def causes(rows: list[dict], ax=None):
    """Change of perplexity when only some inputs, or only the weights, are rounded."""
    ax = ax or style.figure(0.8 + 0.26 * len(rows))[1]
    for y, row in enumerate(reversed(rows)):
        delta, color = row["delta_percent"], style.BLUE if row["weights"] else style.RED
        ax.plot([delta["low"], delta["high"]], [y, y], color=color)
        ax.plot(delta["value"], y, "o", color=color)
    ax.axvline(0, color=style.BLACK, linewidth=0.8)
    _percent_axis("x", ax, rows)
    ax.set(yticks=range(len(rows)), yticklabels=[r["label"] for r in reversed(rows)], ylim=(-0.6, len(rows) - 0.4))
    return ax


def remedies(rows: list[dict], ax=None):
    """Divergence of each way of treating inputs, in the order given; the line is what int8 weights alone cost."""
    ax = ax or style.figure(0.8 + 0.26 * len(rows))[1]
    for y, row in enumerate(reversed(rows)):
        ends, (color, marker) = row["intervals"]["kl"], _look(row["scheme"])
        ax.plot([ends["low"], ends["high"]], [y, y], color=color)
        ax.plot(row["kl"], y, marker, color=color)
    for row in (r for r in rows if r["inputs"] == "float32"):
        ax.axvline(row["kl"], color=style.BLACK, linewidth=0.8)
    ax.set(xscale="log", xlabel="divergence, nats a token")
    plain_ticks(ax.xaxis, (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1))
    ax.set(yticks=range(len(rows)), yticklabels=[r["scheme"] for r in reversed(rows)], ylim=(-0.6, len(rows) - 0.4))
    return ax


def noise(name: str, kinds: dict) -> float:
    """Relative error energy of weights and inputs together under one format of the grid, mean over matrices.

    To first order the errors of both factors of a product add.
    """
    return sum(fmean(10 ** (-v / 10) for v in kinds[k][name]["snr_db"]) for k in ("weights", "activations"))


def noise_against_divergence(rows: list[dict], kinds: dict, ax=None):
    """Divergence of every format of the grid against the error energy of its numbers, from the chapter on formats."""
    ax = ax or style.figure(3.4)[1]
    points = []
    for rule, (label, color, marker) in RULES.items():
        known = [r for r in rows if r["rule"] == rule and r["scheme"] in kinds["weights"]]
        if known:
            x, y = [noise(r["scheme"], kinds) for r in known], [r["kl"] for r in known]
            ax.plot(x, y, color=color, marker=marker, markersize=4, linestyle="none", label=label)
            points += zip(x, y, strict=True)
    x, y = np.log(points).T
    ends, offset = np.array([x.min(), x.max()]), np.median(y - x)
    ax.plot(np.exp(ends), np.exp(ends + offset), color=style.GREY, linewidth=1, label="proportional", zorder=1)
    ax.set(xlabel="error energy of weights and inputs, relative", ylabel="divergence, nats a token")
    ax.set(xscale="log", yscale="log")
    ax.legend(frameon=False, loc="upper left", labelspacing=0.2)
    return ax
