"""Figures of the prefix cache: time to the first token by request, turn and shared prefix, and hit rate by budget."""

import numpy as np

from cachequant.study.figures import style

ARMS = ("no-cache", "cache", "bound")


def milliseconds(speed: dict) -> dict:
    """{median, low, high} in milliseconds of a `speed` (1/s): its ends change places."""
    return {"median": 1e3 / speed["median"], "low": 1e3 / speed["high"], "high": 1e3 / speed["low"]}


def requests(benches: dict):
    """Time to the first token of every request, one axis a set: bars with intervals, the bound as a line across.

    Parameters
    ----------
    benches : {title: object of `bench prefix`}.
    """
    _, axes = style.figure(1.7, len(benches), 1, squeeze=False)
    for ax, (title, bench) in zip(axes[:, 0], benches.items(), strict=True):
        rows = bench["requests"]
        x = np.arange(len(rows))
        for arm, shift in (("no-cache", -0.2), ("cache", 0.2)):
            _bars(ax, x + shift, [milliseconds(row["arms"][arm]["speed"]) for row in rows], arm)
        for at, row in zip(x, rows, strict=True):
            bound = milliseconds(row["arms"]["bound"]["speed"])["median"]
            ax.plot([at, at + 0.4], [bound, bound], color=style.color("bound"))
        ticks = [f"{row['matched']} of\n{row['prompt']}" for row in rows]
        ax.set(xticks=x, xticklabels=ticks, ylabel="ms", title=title)
        ax.grid(axis="x", visible=False)
    axes[-1, 0].set_xlabel("tokens of the prompt that the cache has")
    _key(axes[0, 0])
    return axes[:, 0]


def _bars(ax, x: np.ndarray, cells: list[dict], arm: str) -> None:
    medians = np.array([c["median"] for c in cells])
    reach = [medians - [c["low"] for c in cells], [c["high"] for c in cells] - medians]
    ax.bar(x, medians, 0.38, color=style.color(arm), alpha=0.85)
    ax.errorbar(x, medians, yerr=reach, fmt="none", ecolor="#444444", elinewidth=1, capsize=2)


def _key(ax) -> None:
    """Names of the arms in their colours, above the right end of an axis."""
    for i, arm in enumerate(ARMS[::-1]):
        ax.annotate(
            arm,
            (1, 1),
            (-44 * i - (6 if i else 0), 4),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            color=style.color(arm),
            fontsize=8.5,
        )


def turns(bench: dict):
    """Conversations turn by turn: time to the first token of each arm, and which part of the prompt was found."""
    _, axes = style.figure(2.3, 2, 1, sharex=True)
    rows = bench["turns"] or bench["requests"]
    x = [row["turn"] + 1 for row in rows]
    ends = {}
    for arm in ARMS:
        cells = [milliseconds(row["arms"][arm]["speed"]) for row in rows]
        marker = "x" if arm == "bound" else style.marker(arm)
        axes[0].plot(x, [c["median"] for c in cells], marker, ls="-", color=style.color(arm))
        axes[0].fill_between(
            x, [c["low"] for c in cells], [c["high"] for c in cells], color=style.color(arm), alpha=0.12, lw=0
        )
        ends[arm] = (x[-1], cells[-1]["median"], style.color(arm))
    axes[0].set(ylabel="ms to the first token", ylim=(0, None), xlim=(0.7, x[-1] + 0.3 + 0.12 * len(x)))
    style.label_lines(axes[0], ends)
    axes[1].plot(x, [100 * row["hit_rate"] for row in rows], "o-", color=style.color("cache"))
    axes[1].set(xlabel="turn", ylabel="found, % of the prompt", ylim=(0, 100), xticks=x)
    return axes


def break_even(rows: list[dict], ax=None):
    """Speed with a cache over speed without against the length of the shared prefix; dashed: what a perfect one gives.

    Parameters
    ----------
    rows : of `break_even.measure`.
    """
    ax = ax or style.figure(2.7)[1]
    x = np.arange(len(rows))
    for arm, line in (("bound", "--"), ("cache", "-")):
        cells = [row["ratios"][f"{arm}/no-cache"]["speed"] for row in rows]
        marker = style.marker(arm) if arm == "cache" else ""
        ax.plot(x, [c["median"] for c in cells], marker=marker, ls=line, color=style.color(arm))
        ax.fill_between(
            x, [c["low"] for c in cells], [c["high"] for c in cells], color=style.color(arm), alpha=0.12, lw=0
        )
    ax.axhline(1, color=style.GREY, linestyle=(0, (4, 2)), linewidth=1)
    ends = {a: (x[-1], rows[-1]["ratios"][f"{a}/no-cache"]["speed"]["median"], style.color(a)) for a in ARMS[1:]}
    ax.set(xticks=x, xticklabels=[row["prefix"] for row in rows], xlim=(-0.3, len(rows) - 0.3), yscale="log")
    ax.set(xlabel="tokens of the shared prefix", ylabel="speed, times no-cache")
    style.plain_log(ax.yaxis)
    style.label_lines(ax, ends)
    return ax


def accounting(pairs: dict, ax=None):
    """Speed-up by a cache under both conventions.

    Parameters
    ----------
    pairs : {set: (ratio of the last position's logits, ratio of all positions')}, each {median, low, high}.
    """
    ax = ax or style.figure(0.8 + 0.5 * len(pairs))[1]
    y = np.arange(len(pairs))[::-1]
    for shift, label, tone, i in ((0.19, "last position", style.BLUE, 0), (-0.19, "all positions", style.ORANGE, 1)):
        cells = [pair[i] for pair in pairs.values()]
        medians = np.array([c["median"] for c in cells])
        reach = [medians - [c["low"] for c in cells], [c["high"] for c in cells] - medians]
        ax.barh(y + shift, medians, 0.36, color=tone, alpha=0.85)
        ax.errorbar(medians, y + shift, xerr=reach, fmt="none", ecolor="#444444", elinewidth=1, capsize=2)
        for at, cell in zip(y + shift, cells, strict=True):
            text = f"{cell['median']:.2f}, {label}"
            ax.annotate(text, (cell["high"], at), (3, 0), textcoords="offset points", va="center", fontsize=8.5)
    most = max(c["high"] for pair in pairs.values() for c in pair)
    ax.axvline(1, color=style.GREY, linestyle=(0, (4, 2)), linewidth=1)
    ax.set(yticks=y, yticklabels=list(pairs), xlim=(0, 1.5 * most), xlabel="speed, times no-cache")
    ax.grid(axis="y", visible=False)
    return ax


def stream(found: dict, ax=None):
    """Hit rate of the mixed stream against the budget, a line a page format; dashed: without a budget."""
    ax = ax or style.figure(2.6)[1]
    ends, budgets = {}, sorted({row["budget_mb"] for row in found["rows"]})
    for kv in dict.fromkeys(row["kv"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["kv"] == kv]
        x, y = [row["budget_mb"] for row in rows], [100 * row["hit_rate"] for row in rows]
        ax.plot(x, y, style.marker(kv), ls="-", color=style.color(kv))
        ends[kv] = (x[-1], y[-1], style.color(kv))
    ax.axhline(100 * found["unlimited"], color=style.GREY, linestyle="--", linewidth=1)
    ax.set(xscale="log", ylim=(0, 100), xlabel="budget, MB", ylabel="found, % of the prompts' tokens")
    ax.set_xticks(budgets, [str(b) for b in budgets])
    ax.minorticks_off()
    ax.set_xlim(budgets[0] / 1.15, budgets[-1] * (1.15 if len(budgets) == 1 else 1.35))
    style.label_lines(ax, ends)
    return ax


def eviction(rows: list[dict], ax=None):
    """Microseconds of an insert with evictions against the size of the tree; the nodes that it touches are written."""
    ax = ax or style.figure(2.3)[1]
    x = [row["pages"] for row in rows]
    cells = [row["microseconds"] for row in rows]
    ax.plot(x, [c["median"] for c in cells], "o-", color=style.BLUE)
    ax.fill_between(x, [c["low"] for c in cells], [c["high"] for c in cells], color=style.BLUE, alpha=0.15, lw=0)
    for row, cell in zip(rows, cells, strict=True):
        text = f"{row['touched']:.1f} nodes"
        ax.annotate(text, (row["pages"], cell["high"]), (0, 5), textcoords="offset points", ha="center", fontsize=8.5)
    top = 1.45 * max(c["high"] for c in cells)
    ax.set(xscale="log", ylim=(0, top), xlabel="pages in the tree", ylabel="µs a string")
    ax.set_xticks(x, [f"{n:,}" for n in x])
    ax.minorticks_off()
    ax.set_xlim(x[0] / 2, x[-1] * 2)
    return ax
