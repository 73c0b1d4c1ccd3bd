"""Figures of the baseline and of quantized inference: throughput, latency, cost, and where each format wins."""

import numpy as np
from matplotlib.ticker import MaxNLocator

from cachequant.study.figures import style

PHASES = {"prefill_tok_s": "prefill, tokens/s", "decode_tok_s": "decode, tokens/s"}


def _bars(ax, arms: list[str], cells: list[dict], text=style.number) -> None:
    """Horizontal bars of medians with their intervals, first arm on top, values written behind."""
    y = np.arange(len(arms))[::-1]
    medians = [c["median"] for c in cells]
    reach = [[c["median"] - c["low"] for c in cells], [c["high"] - c["median"] for c in cells]]
    ax.barh(y, medians, 0.72, color=[style.color(a) for a in arms], alpha=0.85)
    ax.errorbar(medians, y, xerr=reach, fmt="none", ecolor="#444444", elinewidth=1, capsize=2)
    for at, cell in zip(y, cells, strict=True):
        ax.annotate(text(cell["median"]), (cell["high"], at), (3, 0), textcoords="offset points", va="center")
    ax.set(yticks=y, yticklabels=arms, xlim=(0, 1.3 * max(c["high"] for c in cells)))
    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)


def _cells(bench: dict, metric: str, order: list[str] | None = None) -> tuple[list[str], list[dict]]:
    """Arms that have a metric, in the order asked for, with its median and interval."""
    arms = [a for a in (order or bench["arms"]) if metric in bench["arms"].get(a, {})]
    return arms, [bench["arms"][a][metric] for a in arms]


def throughput(benches: dict, order: list[str] | None = None):
    """Prefill and decode of every arm, one row of axes a workload.

    Parameters
    ----------
    benches : {workload title: object of `bench decode`}.
    order : arms from top to bottom; those that did not run are left out.
    """
    most = max(len(_cells(b, "prefill_tok_s", order)[0]) for b in benches.values())
    _, axes = style.figure(0.75 + 0.22 * most, len(benches), 2, squeeze=False)
    for row, (title, bench) in zip(axes, benches.items(), strict=True):
        for ax, (metric, label) in zip(row, PHASES.items(), strict=True):
            _bars(ax, *_cells(bench, metric, order))
            ax.set_xlabel(label)
        row[1].set_yticklabels([])
        row[0].set_title(title)
    return axes


def latency(benches: dict, order: list[str] | None = None):
    """Milliseconds a decoded token: the median as a marker, a line to the 90th percentile; one axis a workload."""
    most = max(len(_cells(b, "latency_p50_ms", order)[0]) for b in benches.values())
    _, axes = style.figure(0.7 + 0.22 * most, len(benches), 1, squeeze=False, sharex=True)
    for ax, (title, bench) in zip(axes[:, 0], benches.items(), strict=True):
        arms, middle = _cells(bench, "latency_p50_ms", order)
        high = [bench["arms"][a]["latency_p90_ms"]["median"] for a in arms]
        for y, arm, low, top in zip(range(len(arms))[::-1], arms, middle, high, strict=True):
            ax.plot([low["median"], top], [y, y], color=style.color(arm))
            ax.plot(low["median"], y, style.marker(arm), color=style.color(arm))
            ax.plot(top, y, "|", color=style.color(arm), markersize=9)
            text = f"{style.number(low['median'])} to {style.number(top)}"
            ax.annotate(text, (max(low["median"], top), y), (5, 0), textcoords="offset points", va="center")
        ax.set(yticks=range(len(arms))[::-1], yticklabels=arms, ylim=(-0.6, len(arms) - 0.4), title=title)
        ax.grid(axis="y", visible=False)
    ax.set(xlabel="ms a decoded token, median to 90th percentile", xscale="log")
    low, high = ax.get_xlim()
    ax.set_xlim(low, high * (high / low) ** 0.4)  # room for the text of the slowest arm
    style.plain_log(ax.xaxis)
    return axes[:, 0]


def cost(benches: dict, order: list[str] | None = None):
    """US dollars for a thousand generated tokens at the reference price of a machine hour, one axis a workload."""
    most = max(len(_cells(b, "cost_per_thousand", order)[0]) for b in benches.values())
    _, axes = style.figure(0.7 + 0.22 * most, len(benches), 1, squeeze=False)
    for ax, (title, bench) in zip(axes[:, 0], benches.items(), strict=True):
        _bars(ax, *_cells(bench, "cost_per_thousand", order), text=lambda v: f"{v:.4f}")
        ax.set(title=title, xlabel="US dollars for 1,000 generated tokens")
    return axes[:, 0]


def sweep(sweeps: dict, order: list[str] | None = None):
    """Prefill and decode speed against the length of the prompt, one row of axes a model.

    Parameters
    ----------
    sweeps : {model title: {prompt length: object of `bench decode`}}.
    """
    _, axes = style.figure(2.7, len(sweeps), 2, squeeze=False)
    for row, (title, points) in zip(axes, sweeps.items(), strict=True):
        for ax, (metric, label) in zip(row, PHASES.items(), strict=True):
            ends = _lines(ax, {n: b["arms"] for n, b in points.items()}, metric, order)
            ax.set(xlabel="prompt, tokens", ylabel=label, ylim=(0, None))
        style.label_lines(ax, ends)
        row[0].set_title(title)
    _thin(axes)
    return axes


def ratio(sweeps: dict, baseline: str, order: list[str] | None = None):
    """The same sweep as a ratio to one arm: above the line at 1 an arm wins."""
    _, axes = style.figure(2.7, len(sweeps), 2, squeeze=False)
    for row, (title, points) in zip(axes, sweeps.items(), strict=True):
        for ax, (metric, label) in zip(row, PHASES.items(), strict=True):
            against = {
                n: {a: b["ratios"][f"{a}/{baseline}"] for a in b["arms"] if f"{a}/{baseline}" in b["ratios"]}
                for n, b in points.items()
            }
            ax.axhline(1, color=style.GREY, linestyle=(0, (4, 2)), linewidth=1)
            ends = _lines(ax, against, metric, order)
            ax.set(xlabel="prompt, tokens", ylabel=f"{label.partition(',')[0]}, ratio", ylim=(0, None))
        style.label_lines(ax, ends)
        row[0].set_title(title)
    _thin(axes)
    return axes


def _thin(axes) -> None:
    for ax in axes.ravel():
        style.thin_labels(ax)


def _lines(ax, points: dict, metric: str, order: list[str] | None) -> dict:
    """Draws one line an arm and returns where each ends, for `style.label_lines`."""
    lengths = sorted(points, key=int)
    names = order or list(dict.fromkeys(a for n in lengths for a in points[n]))
    ends = {}
    for arm in names:
        here = [n for n in lengths if metric in points[n].get(arm, {})]
        if not here:
            continue
        x, cells = [int(n) for n in here], [points[n][arm][metric] for n in here]
        ax.plot(x, [c["median"] for c in cells], style.marker(arm), ls="-", color=style.color(arm))
        ax.fill_between(
            x, [c["low"] for c in cells], [c["high"] for c in cells], color=style.color(arm), alpha=0.15, lw=0
        )
        ends[arm] = (x[-1], cells[-1]["median"], style.color(arm))
    ticks = [int(n) for n in lengths]
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(t) for t in ticks])
    ax.tick_params(axis="x", labelsize=8)
    ax.minorticks_off()
    ax.set_xlim(ticks[0] / 1.2, ticks[-1] * 1.2)
    return ends


def bytes_per_token(schemes: dict, ax=None):
    """Weights read for one decoded token, split into block matrices and head.

    Parameters
    ----------
    schemes : {scheme: {"blocks": bytes, "head": bytes}}.
    """
    ax = ax or style.figure(0.8 + 0.3 * len(schemes))[1]
    names, y = list(schemes), np.arange(len(schemes))[::-1]
    blocks, head = (np.array([schemes[n][part] for n in names]) / 1e6 for part in ("blocks", "head"))
    ax.barh(y, blocks, 0.7, color=[style.color(n) for n in names])
    ax.barh(y, head, 0.7, left=blocks, color=[style.color(n) for n in names], alpha=0.45)
    for at, a, b in zip(y, blocks, head, strict=True):
        text = f"{a + b:.0f} MB, head {b / (a + b):.0%}"
        ax.annotate(text, (a + b, at), (3, 0), textcoords="offset points", va="center")
    ax.set(
        yticks=y,
        yticklabels=names,
        xlim=(0, 1.45 * (blocks + head).max()),
        xlabel="MB a decoded token (dark: blocks, light: head)",
    )
    ax.grid(axis="y", visible=False)
    return ax


def scaling(measured: dict, modelled: dict, order: list[str] | None = None):
    """Prefill and decode speed against threads: what was measured, and dashed on a grey ground what a model says.

    Parameters
    ----------
    measured : {arm: {threads: {"prefill_tok_s", "decode_tok_s": summary}}}.
    modelled : {arm: {threads: {"prefill_tok_s", "decode_tok_s": number}}}, further than the measured ones.
    """
    _, axes = style.figure(3.0, 1, 2)
    last = max(int(n) for own in measured.values() for n in own)
    for ax, (metric, label) in zip(axes, PHASES.items(), strict=True):
        ends, most = {}, max(modelled[next(iter(measured))])
        for arm in [a for a in (order or measured) if a in measured]:
            x, tone = [int(n) for n in measured[arm]], style.color(arm)
            ax.plot(x, [c[metric]["median"] for c in measured[arm].values()], style.marker(arm), ls="-", color=tone)
            line = modelled[arm]
            ax.plot(list(line), [v[metric] for v in line.values()], ls=(0, (3, 2)), lw=1.2, color=tone)
            ends[arm] = (most, line[most][metric], tone)
        ticks = [2**i for i in range(most.bit_length())]
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        style.plain_log(ax.yaxis)
        ax.set_xticks(ticks, [str(t) for t in ticks])
        ax.minorticks_off()
        ax.axvspan(last * 2**0.25, most * 1.2, color="#f2f2f2", zorder=0)
        ax.set_xlim(1 / 1.2, most * 1.2)
        ax.annotate(
            "model", (last * 2**0.25, 0.99), (3, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
            va="top", color="#555555",
        )  # fmt: skip
        ax.set(xlabel="threads", ylabel=label)
        ax.tick_params(axis="x", labelsize=8)
    style.label_lines(axes[1], ends)
    return axes


def short_prompts(sweep: dict, steps: dict, order: list[str] | None = None, ax=None):
    """Time of a short prompt in one pass, as points, and of its tokens one by one, dashed.

    Parameters
    ----------
    sweep : {tokens: {arm: summary of seconds}} of one pass.
    steps : the same of the tokens one by one.
    """
    ax = ax or style.figure(3.0)[1]
    ends, most = {}, max(map(int, sweep))
    for arm in order or list(next(iter(sweep.values()))):
        tone = style.color(arm)
        x, y = [int(n) for n in sweep], [1e3 * by[arm]["median"] for by in sweep.values()]
        ax.plot(x, y, style.marker(arm), ls="-", lw=1, markersize=4, color=tone)
        near = {int(n): 1e3 * by[arm]["median"] for n, by in steps.items() if int(n) <= most}
        ax.plot(list(near), list(near.values()), ls=(0, (3, 2)), lw=1.2, color=tone)
        ends[arm] = (x[-1], y[-1], tone)
        ends[f"{arm}, one by one"] = (max(near), near[max(near)], tone)
    ax.set_yscale("log")
    style.plain_log(ax.yaxis)
    ax.set(xlabel="prompt, tokens", ylabel="ms", xlim=(0, most * 1.05))
    style.label_lines(ax, ends)
    return ax
