"""Figures of the chapter on sessions: what a branch costs, what branches share, and what a restored session saves."""

from matplotlib.patches import Rectangle

from cachequant.study.figures import style

SHARED, OWN = "#d9e6f2", style.ORANGE


def _points(rows: list[dict], key: str) -> dict[str, tuple[list[int], list[dict]]]:
    """{format: (tokens, summaries of one key)}, by tokens."""
    found = {}
    for row in sorted(rows, key=lambda r: r["tokens"]):
        x, y = found.setdefault(row["format"], ([], []))
        x.append(row["tokens"])
        y.append(row[key])
    return found


def _line(ax, x: list[int], cells: list[dict], name: str, **look) -> float:
    """A line of medians with its interval; returns where it ends."""
    color = style.color(name)
    ax.plot(x, [c["median"] for c in cells], style.marker(name), color=color, **{"ls": "-"} | look)
    ax.fill_between(x, [c["low"] for c in cells], [c["high"] for c in cells], color=color, alpha=0.15, lw=0)
    return cells[-1]["median"]


def _tokens_axis(ax, rows: list[dict]) -> None:
    ticks = sorted({r["tokens"] for r in rows})
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{t:,}" for t in ticks])
    ax.minorticks_off()
    ax.set(xlim=(ticks[0] / 1.2, ticks[-1] * 1.2), xlabel="tokens of the session")


def fork_time(rows: list[dict], place: str, ax=None):
    """Milliseconds of making a branch against the length of the session, one line a page format.

    Parameters
    ----------
    rows : of `session_rows.forks`.
    place : whose rows are drawn.
    """
    ax = ax or style.figure(2.6)[1]
    rows = [r for r in rows if r["place"] == place]
    ends = {}
    for name, (x, cells) in _points(rows, "fork").items():
        ends[name] = (x[-1], _line(ax, x, cells, name), style.color(name))
    _tokens_axis(ax, rows)
    ax.set(ylim=(0, None), ylabel="ms to make a branch")
    style.label_lines(ax, ends)
    return ax


def first_step(rows: list[dict], ax=None):
    """Milliseconds of a branch's first step beside its second one, by page format and place of the cut.

    Parameters
    ----------
    rows : of `session_rows.forks`, of one length.
    """
    ax = ax or style.figure(0.8 + 0.3 * len(rows))[1]
    y = list(range(len(rows)))[::-1]
    for metric, alpha, shift in (("first", 0.9, 0.18), ("step", 0.35, -0.18)):
        medians = [r[metric]["median"] for r in rows]
        reach = [
            [r[metric]["median"] - r[metric]["low"] for r in rows],
            [r[metric]["high"] - r[metric]["median"] for r in rows],
        ]
        at = [v + shift for v in y]
        ax.barh(at, medians, 0.34, color=[style.color(r["format"]) for r in rows], alpha=alpha)
        ax.errorbar(medians, at, xerr=reach, fmt="none", ecolor="#444444", elinewidth=1, capsize=2)
    for at, row in zip(y, rows, strict=True):
        if row["recomputed"]:
            text = f"{row['recomputed']} tokens again"
            ax.annotate(text, (row["first"]["high"], at + 0.18), (4, 0), textcoords="offset points", va="center")
    ax.set(
        yticks=y,
        yticklabels=[f"{r['format']}, {r['place']}" for r in rows],
        xlim=(0, 1.45 * max(r["first"]["high"] for r in rows)),
        xlabel="ms to logits (dark: first step of the branch, light: second)",
    )
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    return ax


def pages(held: list[list[int]], ax=None):
    """The pages that a session and its branches hold, drawn from their page tables: shared ones pale, own ones full.

    Parameters
    ----------
    held : page numbers of the trunk, then of each branch.
    """
    ax = ax or style.figure(0.5 + 0.3 * len(held))[1]
    for i, row in enumerate(held):
        y = len(held) - 1 - i
        for x, page in enumerate(row):
            own = sum(page in other for other in held) == 1
            ax.add_patch(
                Rectangle((x + 0.04, y - 0.4), 0.92, 0.8, facecolor=OWN if own else SHARED, edgecolor="#444444")
            )
            ax.text(x + 0.5, y, str(page), ha="center", va="center", fontsize=8)
    ax.set(
        xlim=(0, max(map(len, held))),
        ylim=(-0.6, len(held) - 0.4),
        yticks=range(len(held))[::-1],
        yticklabels=["session", *(f"branch {i}" for i in range(1, len(held)))],
        xlabel="page of 32 tokens, in order; equal numbers are the same memory",
    )
    ax.set_xticks([])
    ax.grid(visible=False)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax


def shared_bytes(rows: list[dict], ax=None):
    """MB of a session with its branches against their number: shared pages solid, copies dashed.

    Parameters
    ----------
    rows : of `session_rows.branches`.
    """
    ax = ax or style.figure(2.8)[1]
    ends = {}
    for name in dict.fromkeys(r["format"] for r in rows):
        own = sorted((r for r in rows if r["format"] == name), key=lambda r: r["branches"])
        x, color = [r["branches"] for r in own], style.color(name)
        for key, look, label in (("shared", "-", name), ("separate", (0, (4, 2)), f"{name}, copies")):
            ax.plot(x, [r[key] for r in own], style.marker(name), ls=look, color=color)
            ends[label] = (x[-1], own[-1][key], color)
    ticks = sorted({r["branches"] for r in rows})
    ax.set(xticks=ticks, xlim=(0, 1.05 * ticks[-1]), ylim=(0, None), xlabel="branches", ylabel="MB of pages")
    style.label_lines(ax, ends)
    return ax


def restore(rows: list[dict], ax=None):
    """Seconds to the next token's logits against length: from a file solid, by running all tokens again dashed.

    Parameters
    ----------
    rows : of `session_rows.snapshots`.
    """
    ax = ax or style.figure(2.9)[1]
    ends = {}
    for key, look, label in (("next", "-", "{}, from the file"), ("prefill", (0, (4, 2)), "{}, run again")):
        for name, (x, cells) in _points(rows, key).items():
            ends[label.format(name)] = (x[-1], _line(ax, x, cells, name, ls=look), style.color(name))
    _tokens_axis(ax, rows)
    ax.set(yscale="log", ylabel="seconds to the next token")
    style.plain_log(ax.yaxis)
    style.label_lines(ax, ends)
    return ax
