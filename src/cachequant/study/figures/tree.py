"""The tree of pages as a drawing, one row of axes a request, from left (the root) to right."""

from matplotlib.patches import FancyBboxPatch

from cachequant.study.figures import style

WIDTH, HEIGHT, GAP = 1.5, 0.62, 0.22  # of a box, and between columns
FILL = {"new": "#cfe3f3", "kept": "#f2f2f2", "gone": "#ffffff"}
EDGE = {"new": style.BLUE, "kept": style.GREY, "gone": style.RED}
LINE = "#555555"


def growth(steps: list[dict]):
    """Draw the tree after each request.

    Parameters
    ----------
    steps : of `growth.grow`: `prompt`, `matched`, `evicted`, `nodes` and `gone`, each node with `page`, `parent`,
        `tokens`, `text` and `new`. Boxes in blue are new, dashed ones were there a step before.
    """
    drawn = [_places(step) for step in steps]
    sizes = [max(y for _, _, y, _ in nodes) + 1 for nodes in drawn]
    fig, axes = style.plt.subplots(
        len(steps),
        1,
        figsize=(style.WIDTH, sum(0.42 * n + 0.5 for n in sizes)),
        height_ratios=[n + 0.4 for n in sizes],
        squeeze=False,
    )
    deepest = max(x for nodes in drawn for _, x, _, _ in nodes)
    for i, (ax, step, nodes, size) in enumerate(zip(axes[:, 0], steps, drawn, sizes, strict=True)):
        places = {node["page"]: (x, y) for node, x, y, _ in nodes}
        for node, x, y, kind in nodes:
            _box(ax, node, x, y, kind)
            _edge(ax, places.get(node["parent"]), x, y, kind)
        evicted = f", {step['evicted']} evicted" if step["evicted"] else ""
        ax.set_title(f"{i + 1}: {step['prompt']} tokens asked for, {step['matched']} found{evicted}")
        ax.set(xlim=(-0.25, (deepest + 1) * (WIDTH + GAP)), ylim=(size - 0.55, -0.5))
        ax.set_axis_off()
    return axes[:, 0]


def _places(step: dict) -> list[tuple[dict, int, float, str]]:
    """(node, column, row, kind) of what is there and of what went."""
    here = {node["page"] for node in step["nodes"]}
    nodes = [(node, "new" if node["new"] else "kept") for node in step["nodes"]]
    nodes += [(node, "gone") for node in step["gone"]]
    pages = here | {node["page"] for node in step["gone"]}
    below: dict[int | None, list] = {}
    for node, kind in nodes:
        below.setdefault(node["parent"] if node["parent"] in pages else None, []).append((node, kind))
    out, row = [], 0

    def place(parent: int | None, column: int) -> None:
        nonlocal row
        for i, (node, kind) in enumerate(below.get(parent, [])):
            row += bool(i)
            out.append((node, column, row, kind))
            place(node["page"], column + 1)

    place(None, 0)
    return out


def _box(ax, node: dict, column: int, row: float, kind: str) -> None:
    left = column * (WIDTH + GAP)
    ax.add_patch(
        FancyBboxPatch(
            (left, row - HEIGHT / 2),
            WIDTH,
            HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.06",
            fc=FILL[kind],
            ec=EDGE[kind],
            ls="--" if kind == "gone" else "-",
            lw=1.1,
        )
    )
    text = f"{_shortened(node['text'])}\n{node['tokens']} tokens"
    ax.text(left + WIDTH / 2, row, text, ha="center", va="center", fontsize=7, linespacing=1.05)


def _edge(ax, parent: tuple[int, float] | None, column: int, row: float, kind: str) -> None:
    end = column * (WIDTH + GAP)
    start = -0.22 if parent is None else parent[0] * (WIDTH + GAP) + WIDTH
    height = 0 if parent is None else parent[1]
    middle = (start + end) / 2
    ax.plot(
        [start, middle, middle, end], [height, height, row, row], color=LINE, lw=0.9, ls="--" if kind == "gone" else "-"
    )


def _shortened(text: str, most: int = 21) -> str:
    """The first and the last words of a text."""
    words = text.split()
    if len(" ".join(words)) <= most:
        return " ".join(words)
    end = words[-1]
    begin = words[0]
    for word in words[1:]:
        if len(f"{begin} {word} … {end}") > most:
            break
        begin += f" {word}"
    return f"{begin} … {end}"
