"""Compares local results with the published reference, within the tolerances of `notebooks/tolerances.yaml`.

    05_quality_grid:
      - {value: "schemes.int8.delta_percent.value", absolute: 2.0, same: texts}

`relative` is against the reference's size. `same` says what both results must share for the numbers to be comparable:
the `texts` scored, or the `instruction_sets` of the processors. Results of profile `smoke`, whose numbers mean nothing,
are compared with none.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from cachequant.errors import ResultError
from cachequant.study import layout, results
from cachequant.study.results import Result

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
SAME: dict[str, Callable[[Result], Any]] = {
    "texts": lambda r: r.provenance["texts"],
    "instruction_sets": lambda r: r.provenance["cpu"]["instruction_sets"],
}


@dataclass(frozen=True)
class Row:
    """One comparison; `ok` is None where the two are not comparable, and `why` says why not."""

    notebook: str
    profile: str
    value: str
    local: float | None
    reference: float
    limit: str
    ok: bool | None
    why: str


def compare() -> list[Row]:
    """All comparisons of notebooks that have both a local result and a reference.

    Raises
    ------
    ResultError
        There is nothing to compare, or a tolerance names a value that the reference does not have.
    """
    rows = []
    for name, rules in tolerances().items():
        if all(results.path(name, s).is_file() for s in ("local", "reference")):
            local, reference = results.read(name, "local"), results.read(name, "reference")
            rows += [compare_one(rule, local, reference) for rule in rules]
    if not rows:
        raise ResultError(
            "nothing to compare: `make book` computes local results, results/reference holds the published"
        )
    if all(row.profile == "smoke" for row in rows):
        raise ResultError(
            "local results are of profile smoke, which only shows that everything runs: `make book` computes what can "
            "be compared"
        )
    return rows


def tolerances() -> dict[str, list[dict[str, Any]]]:
    """The rules of each notebook, as they stand in the file."""
    file = layout.root() / "notebooks" / "tolerances.yaml"
    return yaml.safe_load(file.read_text(encoding="utf8"))


def compare_one(rule: dict[str, Any], local: Result, reference: Result) -> Row:
    """Applies one rule to the results of one notebook."""
    ours, theirs = find(local.data, rule["value"]), find(reference.data, rule["value"])
    if theirs is None:
        raise ResultError(f"tolerances.yaml: the reference of {reference.name} has no {rule['value']}")
    allowed = rule["absolute"] if "absolute" in rule else rule["relative"] * abs(theirs)
    limit = f"within {rule['absolute']:g}" if "absolute" in rule else f"within {rule['relative']:.0%}"
    why = _why_not(rule, ours, local, reference)
    ok = None if why else abs(ours - theirs) <= allowed
    return Row(local.name, local.provenance["profile"], rule["value"], ours, theirs, limit, ok, why)


def _why_not(rule: dict[str, Any], ours: float | None, local: Result, reference: Result) -> str:
    """Why two values cannot be compared; empty if they can."""
    if local.provenance["profile"] == "smoke":
        return "profile smoke only shows that everything runs"
    if ours is None:
        return "not among the local results"
    same = rule.get("same")
    return "" if same is None or SAME[same](local) == SAME[same](reference) else f"other {same.replace('_', ' ')}"


def describe(rows: list[Row]) -> str:
    """A line a notebook with the profile of its local result, one a comparison, and one for all."""
    lines, notebook = [], None
    for r in rows:
        if r.notebook != notebook:
            lines.append(f"{r.notebook}: local results of profile {r.profile}")
            notebook = r.notebook
        ours = "none" if r.local is None else f"{r.local:.4g}"
        verdict = {True: "ok", False: "DIFFERS", None: f"not comparable ({r.why})"}[r.ok]
        lines.append(f"  {r.value}: {ours}, reference {r.reference:.4g}, {r.limit}: {verdict}")
    counts = [sum(r.ok is verdict for r in rows) for verdict in (True, False, None)]
    return "\n".join([*lines, "{} within tolerance, {} outside, {} not comparable".format(*counts)])


def find(data: Any, where: str) -> Any:
    """A value inside result data, `kinds.gaussian.snr_db[0]`; None where it does not exist."""
    for key, index in _STEP.findall(where):
        if key:
            data = data.get(key) if isinstance(data, dict) else None
        else:
            data = data[int(index)] if isinstance(data, list) and int(index) < len(data) else None
    return data
