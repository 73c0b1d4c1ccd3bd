"""The decoder block as a drawing: which matrices hold 8-bit codes and what stays float32."""

from matplotlib.patches import FancyBboxPatch

from cachequant.study.figures import style

FILL = {"codes": "#cfe3f3", "float": "#f2f2f2", "head": "#d5efe4"}
EDGE = {"codes": style.BLUE, "float": style.GREY, "head": style.GREEN}
STEP = 1.0  # height of a row of boxes
LEFT, RIGHT = 0.55, 4.0
MIDDLE = (LEFT + RIGHT) / 2
LINE = "#555555"


def _rows(model: dict) -> list[tuple[str, list[tuple[str, str]]]]:
    """Rows of (label, kind) boxes from top to bottom, with the part of the drawing that each belongs to."""
    size = {m["name"].rsplit(".", 1)[-1]: f"{m['out']}×{m['in']}" for m in model["block_matrices"]}

    def matrices(*names):
        return [(f"{n}\n{size[n]}", "codes") for n in names if n in size]

    norm = "RMSNorm" if model["family"] == "llama" else "LayerNorm"
    gate = "SiLU(gate) · up" if model["family"] == "llama" else "GELU"
    return [
        ("outside", [("token embedding", "float")]),
        ("attention", [(norm, "float")]),
        ("attention", matrices("qkv", "q", "k", "v")),
        ("attention", [("attention over KV pages", "float")]),
        ("attention", matrices("o")),
        ("mlp", [(norm, "float")]),
        ("mlp", matrices("gate", "up")),
        ("mlp", [(gate, "float")]),
        ("mlp", matrices("down")),
        ("outside", [(norm, "float")]),
        ("outside", [(f"head\n{model['vocab']}×{model['width']}", "head")]),
    ]


def _box(ax, x: float, y: float, width: float, text: str, kind: str) -> None:
    height = 0.62 if "\n" in text else 0.44
    ax.add_patch(
        FancyBboxPatch(
            (x, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.07",
            fc=FILL[kind],
            ec=EDGE[kind],
            lw=1.1,
        )
    )
    ax.text(x + width / 2, y, text, ha="center", va="center", fontsize=7.5 if width < 1.5 else 8.5, linespacing=1.05)


def decoder_block(model: dict, ax=None):
    """Draw one model.

    Parameters
    ----------
    model : `title`, `family`, `layers`, `vocab`, `width`, `quantized` (number of 8-bit matrices) and
        `block_matrices`, those of one block as {`name`, `out`, `in`}.

    Returns
    -------
    The axis.
    """
    ax = ax or style.figure(5.6)[1]
    rows = _rows(model)
    y, edges = 0.0, {}
    for part, boxes in rows:
        edges.setdefault(part, []).append(y)
        width = (RIGHT - LEFT - 0.12 * (len(boxes) - 1)) / len(boxes)
        for i, (text, kind) in enumerate(boxes):
            _box(ax, LEFT + i * (width + 0.12), y, width, text, kind)
        if (part, boxes) != rows[-1]:
            ax.annotate(
                "",
                (2.27, y - STEP + 0.34),
                (2.27, y - 0.34),
                arrowprops={"arrowstyle": "-|>", "lw": 0.8, "color": "#555555"},
            )
        y -= STEP
    for part in ("attention", "mlp"):  # the residual stream goes around each half
        top, bottom = edges[part][0] + STEP / 2, edges[part][-1] - STEP / 2
        ax.plot([2.27, 0.25, 0.25, 2.2], [top, top, bottom, bottom], color="#555555", lw=0.8, solid_capstyle="butt")
        ax.text(
            2.27,
            bottom,
            "+",
            ha="center",
            va="center",
            fontsize=8,
            bbox={"boxstyle": "circle,pad=0.12", "fc": "white", "ec": "#555555", "lw": 0.8},
        )
    top, bottom = edges["attention"][0] + 0.62, edges["mlp"][-1] - 0.68
    ax.add_patch(
        FancyBboxPatch(
            (0.08, bottom), 4.1, top - bottom, boxstyle="round,pad=0", fc="none", ec="#999999", ls=(0, (3, 2)), lw=0.9
        )
    )
    ax.text(4.14, top - 0.05, f"×{model['layers']}", ha="right", va="top", fontsize=9, color="#555555")
    ax.set_title(f"{model['title']}:\n{model['quantized']} matrices in 8 bits", fontsize=8.5, loc="center")
    ax.set(xlim=(0, 4.3), ylim=(y + 0.5, 0.5))
    ax.axis("off")
    return ax


def decoder_blocks(models: list[dict]):
    """Several models side by side; returns the axes."""
    _, axes = style.figure(5.6, columns=len(models), squeeze=False)
    return [decoder_block(model, ax) for model, ax in zip(models, axes[0], strict=True)]
