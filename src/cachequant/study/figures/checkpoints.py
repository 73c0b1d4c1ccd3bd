"""The figure of the chapter on checkpoints: what is left of float32's file and memory."""

from cachequant.study.figures import style

PARTS = {"file_share": ("file", "s", style.BLUE), "above_share": ("memory", "o", style.RED)}


def shares(rows: list[dict], ax=None):
    """File and memory of each scheme in % of float32's, one line a scheme.

    rows : of `checkpoint_rows.of`, of one model.
    """
    ax = ax or style.figure(0.9 + 0.3 * len(rows))[1]
    for y, row in zip(range(len(rows))[::-1], rows, strict=True):
        values = [row[key] for key in PARTS]
        ax.plot(values, [y, y], color=style.GREY, linewidth=1)
        for value, (_, marker, color) in zip(values, PARTS.values(), strict=True):
            ax.plot(value, y, marker, color=color)
        ax.annotate(
            f"{values[0]:.1f}, {values[1]:.1f}", (max(values), y), (8, 0), textcoords="offset points", va="center"
        )
    for label, marker, color in PARTS.values():
        ax.plot([], [], marker, color=color, label=label)
    ax.legend(frameon=False, loc="lower right")
    ax.set(
        yticks=range(len(rows))[::-1], yticklabels=[r["scheme"] for r in rows], ylim=(-0.6, len(rows) - 0.4),
        xlim=(0, 140), xlabel="% of float32",
    )  # fmt: skip
    ax.grid(axis="y", visible=False)
    return ax
