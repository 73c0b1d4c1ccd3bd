import pytest

from cachequant.errors import ResultError
from cachequant.study import tables
from cachequant.study.results import Result
from cachequant.study.tables import Column, Table

COLUMNS = [Column("scheme", "Scheme", measured=False), Column("ppl", "Perplexity", ".2f")]


def result(set_name="local", text="t", rows=(("int8", 30.123), ("fp32", -1.5)), cpu="A"):
    origin = {
        **{"models": [{"name": "m", "sha256": "0"}, {"name": "r", "sha256": "1", "random": True}]},
        **{"texts": [{"name": text, "sha256": "0"}], "threads": {"numba": 2}},
        **{"cpu": {"model": cpu, "instruction_sets": [], "cores": 2, "logical": 4}},
    }
    return Result("09_x", set_name, {}, origin, {"rows": [{"scheme": s, "ppl": p} for s, p in rows]})


def made(shown, reference=None, **more):
    return tables.table("tab-x", "Perplexity.", COLUMNS, lambda r: r.data["rows"], shown, reference, **more)


def test_a_caption_names_model_text_and_machine():
    assert made(result()).caption == "Perplexity. m, r (random weights); t; A, 2 threads."
    assert made(result(), models=["m"], texts=()).caption == "Perplexity. m; A, 2 threads."


def test_the_reference_stands_below_a_value_that_differs():
    table = made(result(), result("reference", rows=(("int8", 30.1234), ("fp32", 2.0), ("w8", 3.0)), cpu="B"))
    assert table.head == ["Scheme", "Perplexity"]
    assert table.body == [["int8", "30.12"], ["fp32", ("−1.50", "2.00")], ["w8", ("", "3.00")]]
    shown, text = table._repr_markdown_(), table.text
    assert "A, 2 threads. Small figures: the reference (B, 2 threads), where it differs.\n" in shown
    assert "| fp32 | −1.50 [2.00]{.beside} |\n| w8 | [3.00]{.beside} |" in shown and "| fp32 | −1.50 (2.00) |" in text
    assert "A, 2 threads. In parentheses: the reference (B, 2 threads), where it differs.**" in text
    assert "Small" not in made(result(), result("reference"))._repr_markdown_()  # nothing differs


def test_words_stand_to_the_left_and_numbers_to_the_right():
    columns = [Column(k, k, measured=k != "name") for k in ("name", "number", "count", "said", "bits")]
    row = {"name": 1, "number": 1.5, "count": "3 of 4", "said": "at 8 tokens", "bits": None}
    table = tables.table("tab-x", "", columns, lambda _: [row], result())
    assert table.align == [":--", "--:", "--:", ":--", "--:"]
    assert tables.facts("tab-f", "", ["a", "b", "c"], [["2026-01-02", "8.25", "1e-05"]]).align == [":--", "--:", "--:"]


def test_a_caption_tells_how_much_the_reference_has():
    one, other = result(rows=(("fp32", 1020),)), result("reference", rows=(("fp32", 65472),))
    pick = lambda r: r.data["rows"][0]["ppl"]  # noqa: E731
    assert tables.beside(pick, one, other) == "1,020 (reference 65,472)"
    assert tables.beside(pick, other, other) == tables.beside(pick, other, None) == "65,472"


def test_texts_are_never_mixed_in_a_table():
    first, second = made(result(), result("reference", text="other")).parts
    assert (first.name, second.name) == ("tab-x", "tab-x-reference")
    assert first.head == second.head == ["Scheme", "Perplexity"]
    assert "; t;" in first.caption and "; other;" in second.caption and "published reference" in second.caption


def test_rows_that_cannot_be_told_apart_are_an_error():
    with pytest.raises(ResultError, match="scheme"):
        made(result(), result("reference", rows=(("fp32", 1.0), ("fp32", 2.0))))


@pytest.mark.parametrize(
    ("item", "form", "text"),
    [
        (None, ".1f", "–"),
        (1234.56, ",.1f", "1,234.6"),
        (-0.5, "+.1f", "−0.5"),
        (True, "", "yes"),
        ("a|b", "", "a\\|b"),
        ({"median": 2.0, "low": 1.5, "high": 2.5}, ".1f", "2.0 [1.5, 2.5]"),
        ({"value": 2.0, "low": None, "high": None}, ".1f", "2.0"),
    ],
)
def test_cells(item, form, text):
    assert tables.value(item, form) == text


def test_markdown_and_recording():
    with tables.recording() as found:
        table = made(result(rows=(("int8", 1.0),)))
        tables.facts("tab-f", "Facts.", ["a", "b"], [["x", 1]])
    assert table._repr_markdown_().startswith(":::{table} Perplexity. m,")
    assert ":name: tab-x\n\n| Scheme | Perplexity |\n| :-- | --: |\n| int8 | 1.00 |\n:::" in table._repr_markdown_()
    assert [t.name for t in found] == ["tab-x", "tab-f"]
    assert found[1].text == "**Facts.**\n\n| a | b |\n| :-- | --: |\n| x | 1 |"


def test_intervals_stay_whole_and_wide_tables_are_marked():
    row = ["int8", "1.0 [0.9, 1.1]", "[link](a, b)", "−3 [−4, 2]"]
    narrow = Table("tab-n", "c", ["a"] * 4, ["--:"] * 4, [row])
    assert "| int8 | 1.0 [0.9,\xa01.1] | [link](a, b) | −3 [−4,\xa02] |" in narrow._repr_markdown_()
    assert "3\xa0of\xa04 |" in Table("tab-o", "c", ["a"], ["--:"], [["3 of 4"]])._repr_markdown_()
    assert "1.0 [0.9, 1.1]" in narrow.text and ":class:" not in narrow._repr_markdown_()
    wide = Table("tab-w", "c", ["a"] * 8, ["--:"] * 8, [["a name that is longer than most"] + ["1"] * 7])
    assert "\n:class: long-names many-columns\n" in wide._repr_markdown_()
