"""Compares local results with the published reference, within the tolerances of `notebooks/tolerances.yaml`.

    05_quality_grid:
      - {value: "schemes.int8.delta_percent.value", absolute: 0.1, same: [texts, max_tokens]}

`relative` is against the reference's size. A rule with neither limit is a speed: it belongs to a machine and to what
else that machine did, so it is reported and not judged. `same` lists what both results must share for the numbers to be
comparable: the `texts` scored, the `instruction_sets` of the processors, or parameters of the notebook by their names,
as a change of perplexity over a thousand tokens says nothing about one over many thousands. Results of profile `smoke`,
whose numbers mean nothing, are compared with none.
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
    """One comparison; `ok` is None where there is no verdict, and `why` says why not."""

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
    why = _why_not(rule, ours, local, reference)
    limit, ok = "", None
    if "absolute" in rule or "relative" in rule:
        allowed = rule["absolute"] if "absolute" in rule else rule["relative"] * abs(theirs)
        limit = f"within {rule['absolute']:g}" if "absolute" in rule else f"within {rule['relative']:.0%}"
        ok = None if why else abs(ours - theirs) <= allowed
    return Row(local.name, local.provenance["profile"], rule["value"], ours, theirs, limit, ok, why)


def _why_not(rule: dict[str, Any], ours: float | None, local: Result, reference: Result) -> str:
    """Why two values cannot be compared; empty if they can."""
    if local.provenance["profile"] == "smoke":
        return "profile smoke only shows that everything runs"
    if ours is None:
        return "not among the local results"
    for same in rule.get("same", []):
        if same in SAME:
            if SAME[same](local) != SAME[same](reference):
                return f"other {same.replace('_', ' ')}"
        elif same not in reference.parameters:
            known = ", ".join(SAME)
            raise ResultError(f"tolerances.yaml: {reference.name} has no parameter {same!r}, nor is it one of {known}")
        elif local.parameters.get(same) != reference.parameters[same]:
            return f"{same} {local.parameters.get(same)}, reference {reference.parameters[same]}"
    return ""


def describe(rows: list[Row]) -> str:
    """A line a notebook with the profile of its local result, one a comparison, and one for all."""
    lines, notebook = [], None
    for r in rows:
        if r.notebook != notebook:
            lines.append(f"{r.notebook}: local results of profile {r.profile}")
            notebook = r.notebook
        ours = "none" if r.local is None else f"{r.local:.4g}"
        lines.append(f"  {r.value}: {ours}, reference {r.reference:.4g}: {_said(r)}")
    kinds = [r.ok if r.ok is not None else "not comparable" if r.why else "speed" for r in rows]
    counts = [kinds.count(kind) for kind in (True, False, "not comparable", "speed")]
    lines.append("{} within tolerance, {} outside, {} not comparable, {} speeds reported".format(*counts))
    return "\n".join(lines)


def _said(row: Row) -> str:
    if row.why:
        return f"not comparable ({row.why})"
    return {True: "ok, ", False: "DIFFERS, not ", None: "speed, not judged"}[row.ok] + row.limit


def find(data: Any, where: str) -> Any:
    """A value inside result data, `kinds.gaussian.snr_db[0]`; None where it does not exist."""
    for key, index in _STEP.findall(where):
        if key:
            data = data.get(key) if isinstance(data, dict) else None
        else:
            data = data[int(index)] if isinstance(data, list) and int(index) < len(data) else None
    return data
