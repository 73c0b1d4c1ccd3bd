"""Figures of the formats and quality chapters draw from small made-up results and show what they are given."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from cachequant import schemes
from cachequant.study import formats as errors
from cachequant.study.figures import formats, quality

PRESETS = ["int8", "bfp8", "int8-block32", "int8-tensor", "w8", "bfp8-w", "int8+head"]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def change(value, reach=0.1):
    return {"value": value, "low": value - reach, "high": value + reach}


@pytest.fixture
def rows():
    found = []
    for i, name in enumerate(PRESETS):
        scheme = schemes.get(name)
        speed = {"median": 1.5 + i / 2, "low": 1.4 + i / 2, "high": 1.6 + i / 2}
        found.append({
            "scheme": name, "bits": scheme.weight.bits_per_value(768, 768), "rule": errors.rule_name(scheme.weight),
            "granularity": scheme.weight.granularity.name, "delta_percent": change(3.0**i / 20 - 0.2),
            "decode_ratio": speed, "prefill_ratio": speed,
        })  # fmt: skip
    return found


@pytest.fixture
def grid():
    """A made-up cost for each of the 35 cells."""
    found = []
    for i, (name, scheme) in enumerate(schemes.grid().items()):
        q = scheme.weight
        found.append({
            "scheme": name, "bits": q.bits_per_value(768, 768), "rule": q.scale.name, "granularity": q.granularity.name,
            "delta_percent": change(100 / (i + 1) ** 1.5), "kl": 1 / (i + 1),
            "intervals": {"kl": {"low": 0.9 / (i + 1), "high": 1.1 / (i + 1)}},
        })  # fmt: skip
    return found


@pytest.fixture
def sweep(rng):
    names = ("tensor", "row", "block32")
    chosen = {n: q for n, q in errors.all_formats().items() if n.startswith(names)}
    return errors.sweep(
        {"a": rng.standard_normal((8, 64), "float32"), "b": rng.standard_normal((8, 64), "float32")}, chosen
    )


def texts(ax):
    return {t.get_text() for t in ax.texts}


def test_error_against_bits_names_granularities_and_rules(sweep):
    ax = formats.error_against_bits(sweep["formats"])
    assert {"tensor", "row", "32"} <= texts(ax)
    assert len(ax.get_legend().get_texts()) == len(formats.RULES)
    assert "dB" in ax.get_ylabel()


def test_prediction_and_rule_cost(sweep):
    kinds = dict.fromkeys(formats.KINDS, sweep)
    assert len(formats.prediction(kinds).lines) == len(kinds) + 1
    costs = [{"rule": f"snap{n}", "expected_db": 1.0, **dict.fromkeys(formats.KINDS, 1.1)} for n in (2, 4)]
    assert formats.rule_cost(costs).get_ylim()[0] == 0


def test_outliers_and_channels_have_one_line_a_site():
    rows = [{"layer": i, "site": s, "crest": 3.0 + i} for s in formats.SITES for i in range(4)]
    assert len(formats.outliers_by_layer(rows).lines) == len(formats.SITES)
    profiles = {s: {"layer": 0, "maxima": [1.0, 2.0, 50.0]} for s in formats.SITES}
    assert len(formats.channels(profiles).lines) == len(formats.SITES) + 1


def test_grid_shows_every_cell_with_its_number(grid):
    ax = quality.grid(grid)
    assert len(ax.texts) == 35
    assert [t.get_text() for t in ax.get_yticklabels()][:3] == ["tensor", "row", "block 256"]
    assert "+100" in texts(ax)


def test_grid_takes_negative_changes_and_missing_cells(grid):
    grid[3]["delta_percent"] = change(-0.05)
    ax = quality.grid(grid[:-1])
    assert len(ax.texts) == 34
    assert "\N{MINUS SIGN}0.05" in texts(ax)


def test_changes_orders_schemes_by_cost(rows):
    names = [t.get_text() for t in quality.changes(rows).get_yticklabels()]
    assert names == PRESETS[::-1]  # the cheapest is drawn last, on top


def test_against_bits_has_a_line_a_rule(grid):
    ax = quality.against_bits(grid)
    assert len(ax.get_legend().get_texts()) == 5


def test_against_speed_names_every_scheme_once(rows):
    ax = quality.against_speed(rows + [{"scheme": "no speed", "delta_percent": change(1)}])
    assert [t.get_text() for t in ax.texts].count("int8") == 1
    assert texts(ax) == {"fp32", *PRESETS}


def test_arms_keep_their_look_and_schemes_of_one_figure_differ():
    from cachequant.study.figures import style

    assert all(quality.SCHEMES[name] == look for name, look in style.ARMS.items())
    greedy = ["int8", "bfp8", "w8", "int8+head", "w8a12", "int8-hadamard"]
    assert len({quality.SCHEMES[name][0] for name in greedy}) == len(greedy)


def test_divergence_starts_at_all_prompts():
    rows = [
        {"scheme": "int8", "agreed": [0, 3, 8], "new_tokens": 8},
        {"scheme": "bfp8", "agreed": [8, 8, 8], "new_tokens": 8},
    ]
    ax = quality.divergence(rows)
    line = ax.lines[0].get_ydata()
    assert line[0] == 100
    assert line[1] == pytest.approx(200 / 3)
    assert line[-1] == pytest.approx(100 / 3)


def test_causes_label_every_part():
    rows = [{"label": "weights", "weights": True, "delta_percent": change(0.2)},
            {"label": "inputs", "weights": False, "delta_percent": change(3)}]  # fmt: skip
    assert [t.get_text() for t in quality.causes(rows).get_yticklabels()] == ["inputs", "weights"]


def test_noise_pairs_the_grid_with_the_errors_of_its_formats(grid, sweep):
    ax = quality.noise_against_divergence(grid, {"weights": sweep["formats"], "activations": sweep["formats"]})
    drawn = sum(len(line.get_xdata()) for line in ax.lines if line.get_marker() != "None")
    assert drawn == sum(r["scheme"] in sweep["formats"] for r in grid)


def test_remedies_stand_in_the_order_given_beside_what_weights_cost():
    found = [
        {"scheme": name, "inputs": words, "kl": kl, "intervals": {"kl": {"low": 0.9 * kl, "high": 1.1 * kl}}}
        for name, words, kl in (("int8", "8 bits", 0.03), ("w8a12", "12 bits", 0.004), ("w8", "float32", 0.003))
    ]
    ax = quality.remedies(found)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["w8", "w8a12", "int8"]
    assert ax.lines[-1].get_xdata() == [0.003, 0.003]
