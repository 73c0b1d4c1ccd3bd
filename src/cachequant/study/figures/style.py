"""One look for every figure of the book: sizes, colour-blind-safe colours, labels beside the data that keep apart.

Figures are 4.6 inches wide, so that 9 points still measure 10 pixels on a 400-pixel screen. Colours are those of Okabe
and Ito (2008). An arm of a benchmark keeps its colour and marker in every chapter.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.patheffects import withStroke
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
    "llamacpp-q8_0/f16": (GREY, "v"),
    "llamacpp-q8_0/q8_0": (PURPLE, "s"),
    "llamacpp-q8_0/q4_0": (SKY, "P"),
    "fp32": (BLACK, "o"),
    "bfp8": (RED, "D"),
    "int8": (BLUE, "o"),
    "int8+head": (GREEN, "*"),
    "int8+head/int8": (BLUE, "o"),
    "int8+head/k4v4": (RED, "D"),
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
    "figure.constrained_layout.h_pad": 0.07,
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
HALO = [withStroke(linewidth=2.5, foreground="white")]  # for text that may cross a line


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
    for text, wanted, height in _heights(ax, labels, gap):
        x, y, tone = labels[text]
        place = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
        ax.annotate(text, (x, y), (6, height - wanted), color=tone, fontsize=8.5, **place)


def label_points(ax, labels: dict, gap: float = 10.5) -> None:
    """Name points in a column to the right of the axis, each with a thin line to its point.

    Parameters
    ----------
    labels : {text: (x, y, colour)} in data coordinates.
    """
    box, per_point = ax.get_window_extent, ax.get_figure().dpi / 72
    for text, _, height in _heights(ax, labels, gap):
        x, y, tone = labels[text]
        share = (height * per_point - box().y0) / box().height
        line = {
            "arrowstyle": "-",
            "color": tone,
            "alpha": 0.5,
            "lw": 0.7,
            "relpos": (0, 0.5),
            "shrinkA": 1,
            "shrinkB": 3,
        }
        place = {"textcoords": "axes fraction", "va": "center", "annotation_clip": False, "arrowprops": line}
        ax.annotate(text, (x, y), (1.04, share), color=tone, fontsize=8.5, **place)


def _heights(ax, labels: dict, gap: float) -> list[tuple[str, float, float]]:
    """(text, height of its point, height of its label) in points of the figure, from the bottom."""
    ax.get_figure().canvas.draw()  # fixes the layout that the transform below depends on
    per_point = ax.get_figure().dpi / 72
    wanted = sorted((ax.transData.transform((x, y))[1] / per_point, text) for text, (x, y, _) in labels.items())
    places = spread([height for height, _ in wanted], gap)
    return [(text, height, place) for (height, text), place in zip(wanted, places, strict=True)]


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places at least `gap` apart that are nearest to the wanted ones, which are sorted (least squares)."""
    groups: list[list[float]] = []  # sum and number of neighbours that push each other; distances taken out
    for i, place in enumerate(wanted):
        groups.append([place - i * gap, 1])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] >= groups[-1][0] / groups[-1][1]:
            total, count = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += count
    middles = [total / count for total, count in groups for _ in range(int(count))]
    return [middle + i * gap for i, middle in enumerate(middles)]


def thin_labels(ax, gap: float = 2) -> None:
    """Blank those labels of the horizontal axis that would touch a neighbour; the first and the last stay."""
    ax.get_figure().canvas.draw()
    labels = ax.get_xticklabels()
    boxes, room = [label.get_window_extent() for label in labels], gap * ax.get_figure().dpi / 72
    shown, end = [], float("-inf")
    for label, box in zip(labels, boxes, strict=True):
        fits = box is boxes[-1] or (box.x0 >= end + room and box.x1 + room <= boxes[-1].x0)
        shown.append(label.get_text() if fits else "")
        end = box.x1 if fits else end
    ax.set_xticks(ax.get_xticks(), shown)


def plain_log(axis) -> None:
    """Tick labels 1, 2, 5, 10, 20, ... on a logarithmic axis instead of powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda v, _: number(v)))
    axis.set_minor_formatter(NullFormatter())
