"""Every committed result follows the schema and says nothing about the machine but its kind."""

import copy
import dataclasses
import tempfile
from pathlib import Path

import pytest

from cachequant.study import layout, peers, profiles, reproduce, results, runner, summary

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCE = sorted((ROOT / "results" / "reference").glob("*.json"))


def test_the_reference_is_complete():
    assert {p.stem for p in REFERENCE} == set(layout.notebooks())
    assert (ROOT / "results" / "reference" / "summary.md").is_file()


@pytest.mark.parametrize("file", REFERENCE, ids=lambda p: p.stem)
def test_a_committed_result_follows_the_schema(file):
    result = results.read(file.stem, "reference")
    assert result.provenance["commit"]
    assert result.parameters.keys() == runner.plan(file.stem, "full").parameters.keys()


@pytest.mark.parametrize("file", REFERENCE, ids=lambda p: p.stem)
def test_the_reference_is_the_full_study(file):
    assert results.read(file.stem, "reference").provenance["profile"] == "full"


@pytest.mark.parametrize("file", REFERENCE, ids=lambda p: p.stem)
def test_a_committed_result_names_no_folder(file):
    for path in (file, file.with_suffix(".ipynb")):
        text = path.read_text(encoding="utf8")
        for folder in (str(ROOT), str(Path.home()) + "/", tempfile.gettempdir() + "/", "site-packages"):
            assert folder not in text, f"{path.name}: {folder}"


@pytest.mark.parametrize("profile", layout.profiles())
def test_every_profile_gives_every_notebook_parameters_that_it_has(profile):
    for name in layout.notebooks():
        runner.plan(name, profile)


def test_the_budgets_of_the_default_profile_fit_into_its_limit():
    from cachequant.study.compute import QUICK_LIMIT

    budgets = profiles.read("quick").budgets
    assert budgets.keys() == layout.notebooks().keys()
    # the notebook on other people's engines takes its own time, and only where they are installed
    assert sum(minutes for name, minutes in budgets.items() if name not in peers.NOTEBOOKS) <= QUICK_LIMIT


def test_every_tolerance_names_a_value_of_the_reference():
    for name, rules in reproduce.tolerances().items():
        reference = results.read(name, "reference")
        rows = [reproduce.compare_one(rule, reference, reference) for rule in rules]
        assert not any(row.why for row in rows) and all(row.ok is (True if row.limit else None) for row in rows)


def test_a_difference_in_what_a_quick_run_computes_too_is_found():
    """Something is judged whatever the profile and the machine, but of notebooks on speed and on quality alone."""
    judged = {name for name, rules in reproduce.tolerances().items() if any(_everywhere(rule) for rule in rules)}
    assert layout.notebooks().keys() - judged == {"01_baseline", "03_kernels", "05_quality_grid"}
    reference = results.read("10_sessions", "reference")
    broken = dataclasses.replace(reference, data=copy.deepcopy(reference.data))
    broken.data["costs"]["1000"]["fp32"]["bytes"]["file"] += 1
    rows = [reproduce.compare_one(rule, broken, reference) for rule in reproduce.tolerances()["10_sessions"]]
    assert [row.value for row in rows if row.ok is False] == ["costs.1000.fp32.bytes.file"]


def _everywhere(rule):
    return ("absolute" in rule or "relative" in rule) and "same" not in rule


def test_the_headline_of_readme_is_that_of_the_reference():
    assert summary.headline() in (ROOT / "README.md").read_text(encoding="utf8")
