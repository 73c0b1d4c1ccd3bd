"""Summary and comparison with the reference, on a tiny project with one page."""

import sys

import pytest

from cachequant.errors import ResultError
from cachequant.study import pages, provenance, reproduce, results, summary
from cachequant.study.__main__ import main

PAGE = """---
kernelspec: {name: python3}
---

# Squares

```{code-cell} ipython3
:tags: [remove-cell]

from cachequant.study import results
from cachequant.study.tables import Column, table
shown, reference = results.both("01_squares")
print("not part of the summary")
```

Prose.

```{code-cell} ipython3
---
tags: [remove-input]
---
columns = [Column("n", "n", measured=False), Column("square", "Square", "d")]
table("tab-squares", "Squares.", columns, lambda r: r.data["rows"], shown, reference)
```
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "_toc.yml").write_text(
        "root: book/intro\nparts: [{chapters: [{file: book/squares}, {file: book/x}]}]\n"
    )
    (tmp_path / "notebooks" / "profiles").mkdir(parents=True)
    (tmp_path / "notebooks" / "01_squares.py").touch()
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "squares.md").write_text(PAGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CACHEQUANT_RESULTS", raising=False)
    return tmp_path


def put(set_name, square, text="t", profile="quick", parameters=None):
    origin = {
        **{"notebook": "01_squares.py", "profile": profile, "inputs": "0", "commit": "c" * 40, "dirty": True},
        **{"start": "2026-01-01T00:00:00Z", "seconds": 1.5, "load": {"before": [0.5], "after": [0.5]}},
        **provenance.collect(texts=[{"name": text, "sha256": "2"}]),
    }
    data = {"rows": [{"n": 3, "square": square, "ppl": {"value": float(square)}}]}
    result = {"schema": 1, "parameters": parameters or {}, "provenance": origin, "data": data}
    results.write(results.path("01_squares", set_name), result)


def test_a_summary_holds_every_table_of_the_book_as_text(project):
    put("local", 9)
    put("reference", 10)
    text = summary.write("local").read_text()
    assert "## Squares" in text and "**Squares. t;" in text
    assert "| n | Square |\n| :-- | --: |\n| 3 | 9 (10) |" in text
    assert "commit cccccccccc+" in text and "not part" not in text
    assert "| 3 | 10 |" in summary.write("reference").read_text()


def test_pages_whose_results_are_missing_are_left_out(project):
    (project / "notebooks" / "02_cubes.py").touch()
    (project / "book" / "x.md").write_text(PAGE.replace("01_squares", "02_cubes").replace("# Squares", "# Cubes"))
    put("local", 9)
    text = summary.write("local").read_text()
    assert "## Squares" in text and "Cubes" not in text


def test_what_pages_read():
    assert pages.title(PAGE) == "Squares"
    assert pages.code(PAGE).startswith("\nfrom cachequant") and "tags" not in pages.code(PAGE)
    assert pages.reads('no code, only "01_squares"') == []


def test_a_set_without_results_has_no_summary(project):
    with pytest.raises(ResultError, match="no results in results/local"):
        summary.write("local")


def test_the_headline_of_readme_comes_from_the_first_page_and_the_reference(project):
    put("local", 9)
    put("reference", 10)
    (project / "book" / "intro.md").write_text(PAGE)
    file = project / "README.md"
    file.write_text("# Title\n<!-- headline: x -->\nold\n<!-- end of headline -->\nrest\n")
    for _ in range(2):
        summary.readme()
    text = file.read_text()
    assert text.startswith("# Title\n<!-- headline: x -->\n**Squares.") and "old" not in text
    assert "| 3 | 10 |\n<!-- end of headline -->\nrest\n" in text


def tolerate(project, *rules):
    (project / "notebooks" / "tolerances.yaml").write_text("01_squares:\n" + "".join(f"  - {r}\n" for r in rules))


@pytest.mark.parametrize(("square", "ok"), [(9, True), (11, True), (12, False)])
def test_local_results_are_compared_within_tolerances(project, monkeypatch, square, ok):
    tolerate(project, '{value: "rows[0].square", relative: 0.1}', '{value: "rows[0].ppl.value", absolute: 1.0}')
    put("local", square)
    put("reference", 10)
    rows = reproduce.compare()
    assert [r.ok for r in rows] == [ok, ok]
    assert ("DIFFERS" in reproduce.describe(rows)) is not ok
    assert "within 10%" in reproduce.describe(rows) and "within 1\n" in reproduce.describe(rows)
    monkeypatch.setattr(sys, "argv", ["study", "reproduce"])
    assert main() == (0 if ok else 1)


def test_speeds_are_reported_and_not_judged(project):
    tolerate(project, '{value: "rows[0].square"}', '{value: "rows[0].ppl.value", absolute: 1.0}')
    put("local", 90)
    put("reference", 10)
    rows = reproduce.compare()
    assert [r.ok for r in rows] == [None, False]
    said = reproduce.describe(rows)
    assert "rows[0].square: 90, reference 10: speed, not judged\n" in said
    assert said.endswith("0 within tolerance, 1 outside, 0 not comparable, 1 speeds reported")


def test_numbers_from_different_texts_are_not_compared(project):
    tolerate(project, '{value: "rows[0].square", relative: 0.1, same: [texts]}')
    put("local", 50, text="other")
    put("reference", 10)
    rows = reproduce.compare()
    assert [r.ok for r in rows] == [None]
    assert "not comparable (other texts)" in reproduce.describe(rows)


@pytest.mark.parametrize(("tokens", "ok"), [(1024, None), (65536, False)])
def test_numbers_over_other_tokens_are_not_compared(project, tokens, ok):
    tolerate(project, '{value: "rows[0].ppl.value", absolute: 1.0, same: [texts, max_tokens]}')
    put("local", 50, parameters={"max_tokens": tokens})
    put("reference", 10, parameters={"max_tokens": 65536})
    rows = reproduce.compare()
    assert [r.ok for r in rows] == [ok]
    assert ("not comparable (max_tokens 1024, reference 65536)" in reproduce.describe(rows)) is (ok is None)


def test_a_rule_for_an_unknown_parameter_is_an_error(project):
    tolerate(project, '{value: "rows[0].ppl.value", absolute: 1.0, same: [max_token]}')
    put("local", 10)
    put("reference", 10, parameters={"max_tokens": 65536})
    with pytest.raises(ResultError, match="no parameter 'max_token', nor is it one of texts, instruction_sets"):
        reproduce.compare()


def test_numbers_of_a_smoke_run_are_not_compared(project):
    tolerate(project, '{value: "rows[0].square", relative: 0.1}')
    put("local", 10, profile="smoke")
    put("reference", 10)
    with pytest.raises(ResultError, match="profile smoke, which only shows"):
        reproduce.compare()
    rule = {"value": "rows[0].square", "relative": 0.1}
    row = reproduce.compare_one(rule, results.read("01_squares", "local"), results.read("01_squares", "reference"))
    assert (row.ok, row.profile) == (None, "smoke")
    assert "01_squares: local results of profile smoke" in reproduce.describe([row])


def test_a_tolerance_for_nothing_is_an_error(project):
    put("local", 9)
    put("reference", 9)
    tolerate(project, '{value: "rows[4].square", relative: 0.1}')
    with pytest.raises(ResultError, match=r"rows\[4\]"):
        reproduce.compare()


def test_with_nothing_to_compare_it_says_what_to_do(project):
    tolerate(project, '{value: "rows[0].square", relative: 0.1}')
    put("local", 9)
    with pytest.raises(ResultError, match="make book"):
        reproduce.compare()
