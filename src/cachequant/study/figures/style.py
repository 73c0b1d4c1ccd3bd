"""One look for every figure of the book: sizes, colour-blind-safe colours, labels beside the data.

Figures are 4.6 inches wide, so that 9 points still measure 10 pixels on a 400-pixel screen. Colours are those of Okabe
and Ito (2008). An arm of a benchmark keeps its colour and marker in every chapter.
"""

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

WIDTH = 4.6  # inches
BLACK, GREY, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000", "#7f7f7f", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7",
)  # fmt: skip
CYCLE = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)

ARMS = {
    "transformers-fp32": (GREY, "s"),
    "transformers-fp16": (PURPLE, "v"),
    "transformers-bf16": (PURPLE, "^"),
    "torch-fp32": (GREY, "s"),
    "torch-int8": (SKY, "P"),
    "ctranslate2-fp32": (PURPLE, "v"),
    "ctranslate2-int8": (PURPLE, "^"),
    "llamacpp-f32": (ORANGE, "v"),
    "llamacpp-q8_0": (ORANGE, "^"),
    "fp32": (BLACK, "o"),
    "bfp8": (RED, "D"),
    "int8": (BLUE, "o"),
    "int8+head": (GREEN, "*"),
    "w8a12": (ORANGE, "P"),
    "int8-hadamard": (PURPLE, "h"),
    "no-cache": (GREY, "s"),
    "cache": (BLUE, "o"),
    "bound": (BLACK, "_"),
}
SETTINGS = {
    "figure.dpi": 160,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.hashsalt": "cachequant",
}
plt.rcParams.update(SETTINGS)


def figure(height: float = 3.2, rows: int = 1, columns: int = 1, **kwargs):
    """A figure of the book's width, `height` inches a row of axes; returns (figure, axis or array of axes)."""
    return plt.subplots(rows, columns, figsize=(WIDTH, height * rows), **kwargs)


def color(arm: str) -> str:
    """Colour of an arm; names without one of their own get a stable place in the cycle."""
    return ARMS[arm][0] if arm in ARMS else CYCLE[sum(arm.encode()) % len(CYCLE)]


def marker(arm: str) -> str:
    return ARMS[arm][1] if arm in ARMS else "o"


def number(value: float) -> str:
    """Three significant digits, or the whole integer part where it is longer; never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def label_lines(ax, labels: dict, gap: float = 11) -> None:
    """Name each line at its right end instead of in a legend; labels keep `gap` points of distance.

    Parameters
    ----------
    labels : {text: (x, y, colour)} in data coordinates, already limited to what the axis shows.
    """
    ax.get_figure().canvas.draw()  # fixes the layout that the transform below depends on
    per_point = ax.get_figure().dpi / 72
    placed = sorted((ax.transData.transform((x, y))[1] / per_point, text) for text, (x, y, _) in labels.items())
    heights = {}
    last = -1e9
    for want, text in placed:
        heights[text] = last = max(want, last + gap)
    shift = sum(heights[t] - w for w, t in placed) / len(placed)  # spread around the ends, not only upwards
    for want, text in placed:
        x, y, tone = labels[text]
        offset = heights[text] - shift - want if len(placed) > 1 else 0
        ax.annotate(
            text,
            (x, y),
            (6, offset),
            textcoords="offset points",
            va="center",
            color=tone,
            fontsize=8.5,
            annotation_clip=False,
        )


def plain_log(axis) -> None:
    """Tick labels 1, 2, 5, 10, 20, ... on a logarithmic axis instead of powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda v, _: number(v)))
    axis.set_minor_formatter(NullFormatter())
