"""Figures of the chapter on both optimizations at once: gains alone and together, where time goes, and cut prompts."""

import numpy as np

from cachequant.study.combined_rows import PARTS, STATED
from cachequant.study.figures import style

MARKERS = dict(zip(PARTS, ("s", "v", "^"), strict=True))
THIS = STATED["cachequant"]
OURS = f"all, {THIS}"
ZERO = 1e-6  # differences below it are drawn on a linear scale, because most of ours are 0


def _color(variant: str) -> str:
    return style.color(variant.partition("/")[0])


def gains(rows: list[dict]):
    """Gains of each variant with a cache over fp32 without one: parts alone, their product, and all together.

    Parameters
    ----------
    rows : of `combined_rows.gains`; one axis a set.
    """
    sets = list(dict.fromkeys(r["set"] for r in rows))
    most = max(sum(r["set"] == s for r in rows) for s in sets)
    _, axes = style.figure(0.75 + 0.26 * most, len(sets), 1, squeeze=False, sharex=True)
    for ax, name in zip(axes[:, 0], sets, strict=True):
        here = [r for r in rows if r["set"] == name]
        for y, row in zip(range(len(here))[::-1], here, strict=True):
            color, joint = _color(row["variant"]), row["joint"]
            for part, marker in MARKERS.items():
                if row[part]:
                    ax.plot(row[part]["median"], y, marker, color=style.GREY, markersize=4)
            ax.plot(row["product"]["median"], y, "D", markerfacecolor="white", color=color, markersize=7)
            ax.plot([joint["low"], joint["high"]], [y, y], color=color)
            ax.plot(joint["median"], y, "o", color=color)
            end = max(joint["high"], row["product"]["median"], *(row[p]["median"] for p in PARTS if row[p]))
            ax.annotate(f"kept {row['kept']['median']:.2f}", (end, y), (7, 0), textcoords="offset points", va="center")
        ax.axvline(1, color=style.GREY, linestyle=(0, (4, 2)), linewidth=1)
        labels = [r["variant"] for r in here]
        ax.set(
            yticks=range(len(here))[::-1], yticklabels=labels, ylim=(-0.6, len(here) - 0.4), title=name, xscale="log"
        )
        ax.grid(axis="y", visible=False)
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * (high / low) ** 0.3)
    style.plain_log(ax.xaxis)
    ax.set_xlabel("times fp32 without a cache")
    looks = [(m, style.GREY, style.GREY, p) for p, m in MARKERS.items() if any(r[p] for r in rows)]
    looks += [("D", style.BLACK, "white", "product"), ("o", style.BLACK, style.BLACK, "all together")]
    for marker, color, face, label in looks:
        axes[0, 0].plot([], [], marker, color=color, markerfacecolor=face, label=label)
    axes[0, 0].get_figure().legend(
        loc="outside upper center", ncols=len(looks), frameon=False, handletextpad=0.1, columnspacing=0.8
    )
    return axes[:, 0]


def seconds(rows: list[dict]):
    """Milliseconds of a request, to the first token dark and from there to the last light, without and with a cache.

    Parameters
    ----------
    rows : of `combined_rows.speeds`; one axis a set.
    """
    sets = list(dict.fromkeys(r["set"] for r in rows))
    most = max(sum(r["set"] == s for r in rows) for s in sets)
    _, axes = style.figure(0.6 + 0.2 * most, len(sets), 1, squeeze=False)
    for ax, name in zip(axes[:, 0], sets, strict=True):
        here = [r for r in rows if r["set"] == name]
        y = np.arange(len(here))[::-1]
        first, whole = ([r[key]["median"] for r in here] for key in ("first", "request"))
        colors = [_color(r["variant"]) for r in here]
        ax.barh(y, whole, 0.74, color=colors, alpha=0.35)
        ax.barh(y, first, 0.74, color=colors, alpha=0.9)
        for at, value in zip(y, whole, strict=True):
            ax.annotate(style.number(value), (value, at), (3, 0), textcoords="offset points", va="center")
        labels = [r["variant"] + ", reuse" * (r["reuse"] == "yes") for r in here]
        ax.set(yticks=y, yticklabels=labels, xlim=(0, 1.15 * max(whole)), title=name)
        ax.grid(axis="y", visible=False)
        ax.tick_params(axis="y", length=0)
    ax.set_xlabel("ms a request (dark: to the first token)")
    return axes[:, 0]


def differences(rows: list[dict]):
    """Largest difference of a logit in each prompt between whole and cut, one dot a prompt, one axis a split.

    Parameters
    ----------
    rows : of `combined_rows.chunks`; all schemes of this decoder share a line at the bottom.
    """
    splits = list(dict.fromkeys(r["split"] for r in rows))
    lines = {split: _lines([r for r in rows if r["split"] == split]) for split in splits}
    _, axes = style.figure(0.6 + 0.22 * max(map(len, lines.values())), len(splits), 1, squeeze=False, sharex=True)
    for ax, (split, here) in zip(axes[:, 0], lines.items(), strict=True):
        for y, (label, values) in zip(range(len(here))[::-1], here.items(), strict=True):
            color = style.GREEN if label == OURS else style.RED
            ax.plot(values, [y] * len(values), "o", color=color, alpha=0.5, markersize=4)
        ax.set(yticks=range(len(here))[::-1], yticklabels=here, ylim=(-0.6, len(here) - 0.4), title=split)
        ax.grid(axis="y", visible=False)
    ax.set_xscale("symlog", linthresh=ZERO, linscale=0.4)
    powers = range(-5, 1)
    ax.set_xticks([0, *(10.0**p for p in powers)], ["0", *(f"$10^{{{p}}}$" for p in powers)])
    ax.minorticks_off()
    ax.set(xlim=(-2e-7, 2 * max(1, *(max(r["differences"]) for r in rows))), xlabel="largest difference of a logit")
    return axes[:, 0]


def _lines(rows: list[dict]) -> dict[str, list[float]]:
    """{label: differences of all prompts}, of one split."""
    theirs = [r for r in rows if r["engine"] != THIS]
    found = {f"{r['scheme']}, {r['engine'].replace('transformers', 'HF')}": r["differences"] for r in theirs}
    ours = [d for r in rows if r["engine"] == THIS for d in r["differences"]]
    return found | ({OURS: ours} if ours else {})
