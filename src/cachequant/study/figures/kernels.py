"""Figures of the kernel chapter: the ladder, layers against torch, stages, streaming, and the roofline."""

import numpy as np

from cachequant.study.figures import style


def ladder(rungs: dict, ax=None):
    """Billions of operations a second of each rung, on a logarithmic axis.

    Parameters
    ----------
    rungs : {name: {"median", "low", "high"} in GOP/s}, from the bottom rung to the top one.
    """
    ax = ax or style.figure(0.6 + 0.3 * len(rungs))[1]
    y, cells = np.arange(len(rungs))[::-1], list(rungs.values())
    medians = [c["median"] for c in cells]
    tones = [style.GREY if name.startswith("torch") else style.BLUE for name in rungs]
    start = min(medians) / 3
    ax.barh(y, [m - start for m in medians], 0.7, left=start, color=tones)
    for at, m in zip(y, medians, strict=True):
        ax.annotate(style.number(m), (m, at), (4, 0), textcoords="offset points", va="center")
    ax.set_xscale("log")
    ax.set(yticks=y, yticklabels=list(rungs), xlim=(start, max(medians) * 9), xlabel="billion operations a second")
    ax.grid(axis="y", visible=False)
    return ax


def layers(shapes: dict, order: list[str]):
    """Time of each layer in each arm relative to the first arm; one axis a number of tokens.

    Parameters
    ----------
    shapes : {tokens: {layer: {arm: seconds}}}.
    order : arms; the first is the one that the others are compared with.
    """
    _, axes = style.figure(2.5, len(shapes), 1, squeeze=False)
    for ax, (tokens, rows) in zip(axes[:, 0], shapes.items(), strict=True):
        width = 0.8 / (len(order) - 1)
        for i, arm in enumerate(order[1:]):
            x = np.arange(len(rows)) + (i - (len(order) - 2) / 2) * width
            speedup = [r[order[0]] / r[arm] for r in rows.values()]
            ax.bar(x, speedup, width * 0.92, color=style.color(arm), label=arm)
            for at, value in zip(x, speedup, strict=True):
                ax.annotate(f"{value:.1f}", (at, value), (0, 2), textcoords="offset points", ha="center", fontsize=8)
        ax.axhline(1, color=style.GREY, linestyle=(0, (4, 2)), linewidth=1)
        ax.set(xticks=range(len(rows)), xticklabels=list(rows), ylabel=f"times {order[0]}")
        ax.set_title("one token" if int(tokens) == 1 else f"{tokens} tokens at once")
        ax.margins(y=0.15)
        ax.grid(axis="x", visible=False)
    look = {"handlelength": 1, "columnspacing": 1.2, "frameon": False}
    ax.get_figure().legend(*ax.get_legend_handles_labels(), ncols=len(order) - 1, loc="outside lower center", **look)
    return axes[:, 0]


STAGES = {
    "quantize": style.ORANGE,
    "multiply": style.BLUE,
    "rescale": style.GREEN,
    "multiply and rescale": style.SKY,
}


def stages(rows: dict, ax=None):
    """Share of a layer's time in each stage, with the total written behind.

    Parameters
    ----------
    rows : {label: {stage: seconds}}; a row may lack stages.
    """
    ax = ax or style.figure(0.9 + 0.3 * len(rows))[1]
    y, left = np.arange(len(rows))[::-1], np.zeros(len(rows))
    totals = np.array([sum(r.values()) for r in rows.values()])
    for name, tone in STAGES.items():
        share = np.array([r.get(name, 0.0) for r in rows.values()]) / totals
        if not share.any():
            continue
        ax.barh(y, share, 0.7, left=left, color=tone, label=name)
        for at, a, s in zip(y, left, share, strict=True):
            if s > 0.09:
                ax.text(a + s / 2, at, f"{s:.0%}", ha="center", va="center", fontsize=8)
        left += share
    for at, total in zip(y, totals, strict=True):
        ax.annotate(_duration(total), (1, at), (4, 0), textcoords="offset points", va="center")
    ax.set(yticks=y, yticklabels=list(rows), xlim=(0, 1.22), xticks=[], xlabel="share of the time, and its total")
    handles = ax.get_legend_handles_labels()
    ax.get_figure().legend(*handles, ncols=2, loc="outside upper right", frameon=False, handlelength=1)
    ax.grid(visible=False)
    return ax


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def streaming(arms: dict, bandwidth: float, ax=None):
    """Weight bytes a second of a matrix-vector product: weights in the cache against weights out of memory.

    Parameters
    ----------
    arms : {arm: {"hot": GB/s, "cold": GB/s}}.
    bandwidth : GB/s of reading memory.
    """
    ax = ax or style.figure(1.0 + 0.32 * len(arms))[1]
    for y, (arm, cell) in zip(range(len(arms))[::-1], arms.items(), strict=True):
        ax.plot([cell["cold"], cell["hot"]], [y, y], color=style.color(arm), linewidth=1.2)
        ax.plot(cell["cold"], y, "o", color=style.color(arm), markersize=7)
        ax.plot(cell["hot"], y, "o", color=style.color(arm), markersize=7, markerfacecolor="white")
        right = max(cell["cold"], cell["hot"])
        text = f"{style.number(cell['cold'])} cold, {style.number(cell['hot'])} hot"
        ax.annotate(text, (right, y), (6, 0), textcoords="offset points", va="center")
    ax.axvline(bandwidth, color=style.GREY, linestyle=(0, (4, 2)), linewidth=1)
    ax.annotate(
        "memory",
        (bandwidth, len(arms) - 0.45),
        (0, 0),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color="#555555",
    )
    top = max(max(c.values()) for c in arms.values())
    ax.set(yticks=range(len(arms))[::-1], yticklabels=list(arms), ylim=(-0.6, len(arms) - 0.4))
    ax.set(
        xlim=(0, max(top, bandwidth) * 1.45),
        xlabel="GB/s of weights (full: from memory, hollow: from cache)",
    )
    ax.grid(axis="y", visible=False)
    return ax


def roofline(points: list[dict], peaks: dict, bandwidth: float, ax=None):
    """Operations a second against operations a byte, with what this machine allows.

    Parameters
    ----------
    points : {"arm", "tokens", "intensity" in operations a byte of memory traffic, "gops"}.
    peaks : {label: GOP/s}, the flat roofs.
    bandwidth : GB/s, the sloping roof.
    """
    ax = ax or style.figure(3.4)[1]
    reach = [p["intensity"] for p in points]
    for arm in dict.fromkeys(p["arm"] for p in points):
        own = sorted((p for p in points if p["arm"] == arm), key=lambda p: p["intensity"])
        at = [p["intensity"] for p in own], [p["gops"] for p in own]
        ax.plot(*at, style.marker(arm), ls=":", lw=1, color=style.color(arm), label=arm)
    _roofs(ax, min(reach) / 2, max(reach) * 6, peaks, bandwidth)
    ax.legend(frameon=False, loc="lower right")
    return ax


def climb(many: dict, one: dict, peaks: dict, bandwidth: float, ax=None):
    """The rungs of the ladder under the roofs: those of many tokens full and named, those of one token hollow.

    Parameters
    ----------
    many, one : {rung: {"median" in GOP/s, "intensity" in operations a byte of memory traffic}}.
    peaks, bandwidth : as for `roofline`.
    """
    ax = ax or style.figure(3.9)[1]
    tones = {rung: style.CYCLE[i % len(style.CYCLE)] for i, rung in enumerate(many)}
    for rungs, face in ((many, None), (one, "white")):
        x, y = [c["intensity"] for c in rungs.values()], [c["median"] for c in rungs.values()]
        ax.plot(x, y, ls=":", lw=1, color=style.GREY, zorder=1)
        for rung, at, height in zip(rungs, x, y, strict=True):
            ax.plot(at, height, "o", markersize=6, color=tones[rung], markerfacecolor=face or tones[rung])
    reach = [c["intensity"] for rungs in (many, one) for c in rungs.values()]
    _roofs(ax, min(reach) / 2, max(reach) * 3, peaks, bandwidth, left=True)
    style.label_points(ax, {rung: (c["intensity"], c["median"], tones[rung]) for rung, c in many.items()})
    return ax


def _roofs(ax, start: float, end: float, peaks: dict, bandwidth: float, left: bool = False) -> None:
    """Draws what this machine allows, and makes both axes logarithmic.

    left : name the lower roofs where they begin, not where they end.
    """
    x, top = np.geomspace(start, end, 200), max(peaks.values())
    look = {"textcoords": "offset points", "color": "#555555", "path_effects": style.HALO}
    for label, peak in peaks.items():
        ax.plot(x, np.minimum(peak, bandwidth * x), color=style.GREY, linewidth=1, zorder=0)
        side, va = (3, "bottom") if peak == top else (-3, "top")  # arms may lie above a lower roof
        place, ha = (peak / bandwidth, "left") if left and peak < top else (x[-1], "right")
        ax.annotate(f"{label} {style.number(peak)}", (place, peak), (0, side), ha=ha, va=va, fontsize=8.5, **look)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set(xlabel="operations a byte of memory traffic", ylabel="billion operations a second")
    ax.get_figure().canvas.draw()  # fixes the angle of the slope
    ends = ax.transData.transform([(x[0], bandwidth * x[0]), (top / bandwidth, top)])
    angle = np.degrees(np.arctan2(*(ends[1] - ends[0])[::-1]))
    middle = np.sqrt(x[0] * top / bandwidth)
    turned = {"rotation": angle, "rotation_mode": "anchor", "ha": "center", "va": "bottom"}
    ax.annotate(f"memory {style.number(bandwidth)} GB/s", (middle, bandwidth * middle), (-2, 2), **turned, **look)
