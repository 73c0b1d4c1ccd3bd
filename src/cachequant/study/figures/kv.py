"""Figures of the chapter on compressed keys and values; each takes a part of its result and an axis."""

import numpy as np

from cachequant.study.figures import style
from cachequant.study.figures.formats import plain_ticks

STAGES = {
    "raw": ("as they are", style.RED),
    "rotated": ("rotated", style.BLUE),
    "calibrated": ("calibrated and rotated", style.GREEN),
}
PAGES = {
    "fp32": (style.BLACK, "o"),
    "fp16": (style.GREY, "s"),
    "int8": (style.BLUE, "o"),
    "k4v4": (style.RED, "D"),
    "k4v3": (style.ORANGE, "^"),
    "k3v3": (style.GREEN, "v"),
    "mixed": (style.SKY, "*"),
    "k2v2": (style.PURPLE, "p"),
}
SIDES = {"keys": (style.BLUE, "o"), "values": (style.RED, "s")}
SMALLEST = 0.03  # percent: changes below it are drawn on a linear scale


def look(name: str) -> tuple[str, str]:
    """Colour and marker of a page format or of an arm over it."""
    if name.startswith("sdpa"):
        return style.PURPLE if name.endswith("16") else style.SKY, "P"
    name = name.removeprefix("kv-")
    color, marker = PAGES.get(name) or PAGES.get(name.removesuffix("/none"), (style.GREY, "X"))
    return color, "x" if name.endswith("/none") else marker


def channels(loudest: dict, ax=None):
    """Root mean square of each channel of one head's keys, before and after the rotation."""
    ax = ax or style.figure(2.6)[1]
    for stage in ("raw", "rotated"):
        title, color = STAGES[stage]
        ax.step(
            range(len(loudest["channels"][stage])), loudest["channels"][stage], where="mid", color=color, label=title
        )
    ax.set(xlabel="channel", ylabel="root mean square of keys", ylim=(0, None), xlim=(-0.5, None))
    ax.legend(frameon=False, loc="upper right", labelspacing=0.2)
    return ax


def histograms(shapes: dict, axes=None):
    """Density of the numbers of a vector over its root mean square, keys above values, against a Gaussian."""
    axes = style.figure(2.5, 2, 1, sharex=True)[1] if axes is None else axes
    edges = np.array(shapes["edges"])
    middle = (edges[1:] + edges[:-1]) / 2
    for ax, (side, stages) in zip(axes, shapes["sides"].items(), strict=True):
        for stage, (title, color) in STAGES.items():
            density = np.array(stages[stage]["density"])
            ax.plot(middle[density > 0], density[density > 0], color=color, label=title, linewidth=1.2)
        ax.plot(middle, np.exp(-(middle**2) / 2) / np.sqrt(2 * np.pi), "--", color=style.BLACK, label="Gaussian")
        ax.set(yscale="log", ylim=(1e-6, 60), ylabel="density", title=side)
    axes[0].legend(frameon=False, loc="upper right", labelspacing=0.2, fontsize=8)
    axes[-1].set_xlabel("value over the root mean square of its vector")
    return axes


def distortion(rows: list[dict], ax=None):
    """Relative squared error of Gaussian vectors against bits a value, with the bound that no code undercuts."""
    ax = ax or style.figure(3.0)[1]
    bits = np.linspace(1.9, 4.5, 50)
    ax.plot(bits, 2.0 ** (-2 * bits), color=style.BLACK, label="rate-distortion bound")
    single = sorted({(r["bits"], r["lloyd_max"]) for r in rows})
    ax.plot(*zip(*single, strict=True), "_", color=style.GREY, markersize=16, label="Lloyd-Max, a value alone")
    for d, marker in zip(sorted({r["head_dim"] for r in rows}), "os^", strict=False):
        some = [r for r in rows if r["head_dim"] == d]
        stored = [r["stored"] for r in some]
        for key, color, title in (
            ("rms", style.RED, "scale: root mean square"),
            ("search", style.BLUE, "scale searched"),
        ):
            ax.plot(stored, [r[key] for r in some], marker, color=color, label=f"{title}, {d} values")
    ax.set(yscale="log", xlabel="bits a value, scale counted", ylabel="relative squared error")
    plain_ticks(ax.yaxis, (0.002, 0.005, 0.01, 0.02, 0.05, 0.1))
    ax.legend(frameon=False, loc="lower left", labelspacing=0.2, fontsize=8)
    return ax


def stages(found: dict[str, list[dict]], ax=None):
    """Error of attention's output after each part of the code, one line a number of bits."""
    titles = [row["stage"] for row in next(iter(found.values()))]
    ax = ax or style.figure(0.9 + 0.3 * len(titles))[1]
    y = range(len(titles))[::-1]
    for name, rows in found.items():
        color, marker = look(name)
        ax.plot([100 * row["output"] for row in rows], y, color=color, marker=marker, label=name)
    ax.set(xscale="log", xlabel="error of attention's output, % of its energy", yticks=y, yticklabels=titles)
    plain_ticks(ax.xaxis, (0.1, 0.3, 1, 3, 10, 30, 100, 300))
    ax.legend(frameon=False, loc="lower right", labelspacing=0.2)
    return ax


def against_bits(rows: list[dict], front: list[dict], ax=None):
    """Change of perplexity of page formats against bits a value in the limit; the line joins those that none beats."""
    ax = ax or style.figure(3.2)[1]
    labels = {}
    ax.plot([r["bits"] for r in front], [r["delta_percent"]["value"] for r in front], color="#bbbbbb", zorder=1)
    for row in rows:
        delta, (color, marker) = row["delta_percent"], look(row["pages"])
        ax.plot([row["bits"]] * 2, [delta["low"], delta["high"]], color=color, linewidth=1)
        ax.plot(row["bits"], delta["value"], marker, color=color)
        labels[row["pages"]] = (row["bits"], delta["value"], color)
    ends = [r["delta_percent"][k] for r in rows for k in ("low", "high")]
    ax.set_yscale("symlog", linthresh=SMALLEST)
    ax.set(xscale="log", xlim=(2, 18), ylim=(min(0, *ends) * 1.3 - 0.01, max(ends) * 1.5))
    ax.axhline(0, color=style.BLACK, linewidth=0.8)
    plain_ticks(ax.xaxis, (2, 3, 4, 6, 8, 12, 16))
    shown = [t for t in (-1, -0.1, 0, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100) if ax.get_ylim()[0] <= t <= ax.get_ylim()[1]]
    ax.set_yticks(shown, [f"{t:g}".replace("-", "\N{MINUS SIGN}") for t in shown])
    ax.set_yticks([], minor=True)
    ax.set(xlabel="bits a value in the limit, scales counted", ylabel="change of perplexity, %")
    style.label_points(ax, labels)
    return ax


def by_layer(cosines: dict[str, list[dict]], ax=None):
    """1 - cosine of attention's output over codes and the exact one, mean over heads and tokens, layer by layer."""
    ax = ax or style.figure(2.8)[1]
    labels = {}
    for name, rows in cosines.items():
        color, marker = look(name)
        x, y = [r["layer"] for r in rows], [max(1 - r["mean"], 1e-9) for r in rows]
        ax.plot(x, y, color=color, marker=marker, markersize=3)
        labels[name] = (x[-1], y[-1], color)
    ax.set(yscale="log", xlabel="layer", ylabel="1 − cosine of the output")
    style.label_lines(ax, labels)
    return ax


def sensitivity(layers: list[dict], ax=None):
    """Divergence when the keys, or the values, of a single layer are coded."""
    ax = ax or style.figure(2.6)[1]
    for side, (color, marker) in SIDES.items():
        ax.plot([r["layer"] for r in layers], [r[side] for r in layers], color=color, marker=marker, label=side)
    ax.set(yscale="log", xlabel="the only layer that is coded", ylabel="divergence, nats a token")
    ax.legend(frameon=False, loc="best", labelspacing=0.2)
    return ax


def sparse(masses: list[dict], ax=None):
    """Share of the pages of values that are read, and the error, against the mass that they hold."""
    ax = ax or style.figure(2.6)[1]
    read, error = [100 * r["read"] for r in masses], [100 * r["error"] for r in masses]
    plain = [100 * r["error_plain"] for r in masses]
    ax.plot(read, plain, color=style.GREY, marker="s", markersize=4, label="weights as they are")
    ax.plot(read, error, color=style.BLUE, marker="o", markersize=4, label="weights scaled to sum 1")
    for x, y, row in zip(read, error, masses, strict=True):
        ax.annotate(f"{100 * row['mass']:g} %", (x, y), (-4, -11), textcoords="offset points", fontsize=8)
    ax.set(yscale="log", xlabel="pages of values that are read, %", ylabel="error of the output, %", xlim=(0, 104))
    plain_ticks(ax.yaxis, (0.001, 0.01, 0.1, 1, 10))
    ax.legend(frameon=False, loc="lower left", labelspacing=0.2)
    return ax


def memory(rows: list[dict], ax=None):
    """Megabytes of the pages of one sequence against its length, one line a format."""
    ax = ax or style.figure(3.0)[1]
    labels = {}
    for name in dict.fromkeys(r["kv"] for r in rows):
        color, marker = look(name)
        some = [r for r in rows if r["kv"] == name]
        x, y = [r["context"] for r in some], [r["bytes"]["pages"] / 1e6 for r in some]
        ax.plot(x, y, color=color, marker=marker, markersize=3.5)
        labels[name] = (x[-1], y[-1], color)
    ax.set(xscale="log", yscale="log", xlabel="tokens", ylabel="MB of keys and values")
    _contexts(ax, [r["context"] for r in rows])
    style.plain_log(ax.yaxis)
    style.label_lines(ax, labels)
    return ax


def attention_time(benches: dict[str, dict], ax=None):
    """Milliseconds of one decoded token's attention in all layers against the context, one line an arm."""
    ax = ax or style.figure(3.2)[1]
    labels, contexts = {}, sorted(map(int, benches))
    for arm in next(iter(benches.values()))["arms"]:
        color, marker = look(arm)
        some = [n for n in contexts if arm in benches[str(n)]["arms"]]
        labels[arm] = _milliseconds(ax, benches, arm, some, color=color, marker=marker, markersize=3.5)
    ax.set(xscale="log", yscale="log", xlabel="tokens cached", ylabel="ms of attention a token")
    _contexts(ax, contexts)
    plain_ticks(ax.yaxis, (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100))
    style.label_lines(ax, labels)
    return ax


def look_of_pages(arm: str) -> tuple[str, str]:
    """Colour and marker of the pages of an arm such as ``int8/k4v4``."""
    return look(arm.split("/", 1)[1] if "/" in arm else "fp32")


def decode_time(benches: dict[str, dict], ax=None, looks=look_of_pages):
    """Milliseconds of a whole decoded token against the context, one line an arm; `looks` gives colour and marker."""
    ax = ax or style.figure(2.8)[1]
    labels, contexts = {}, sorted(map(int, benches))
    for arm in next(iter(benches.values()))["arms"]:
        color, marker = looks(arm)
        labels[arm] = _milliseconds(ax, benches, arm, contexts, color=color, marker=marker, markersize=4)
    ax.set(xlabel="tokens before it", ylabel="ms a decoded token", ylim=(0, 1.1 * ax.get_ylim()[1]))
    style.label_lines(ax, labels)
    return ax


def _milliseconds(ax, benches: dict[str, dict], arm: str, contexts: list[int], color: str, **look):
    """Draw one arm with its intervals; gives the end of its line and the colour, for a label."""
    speeds = [benches[str(n)]["arms"][arm]["speed"] for n in contexts]
    y = np.array([1e3 / s["median"] for s in speeds])
    ends = np.array([[1e3 / s["high"] for s in speeds], [1e3 / s["low"] for s in speeds]])
    ax.errorbar(contexts, y, yerr=np.abs(ends - y), color=color, elinewidth=0.8, **look)
    return contexts[-1], y[-1], color


def _contexts(ax, contexts: list[int]) -> None:
    shown = sorted(set(contexts))
    plain_ticks(ax.xaxis, shown)
    style.thin_labels(ax)
