"""Compares local results with the published reference, within the tolerances of `notebooks/tolerances.yaml`.

    05_quality_grid:
      - {value: "rows[name=int8].delta_percent.value", absolute: 1.0, same: texts}

`relative` is against the reference's size; `same: texts` leaves a comparison out where the two results scored
different texts, since such numbers are not comparable.
"""

import re
from dataclasses import dataclass
from typing import Any

import yaml

from cachequant.errors import ResultError
from cachequant.study import layout, results

_STEP = re.compile(r"([^.\[\]]+)|\[([^\]=]+)=([^\]]+)\]")


@dataclass(frozen=True)
class Row:
    """One comparison; `ok` is None where the two are not comparable."""

    notebook: str
    value: str
    local: float | None
    reference: float | None
    limit: str
    ok: bool | None


def compare() -> list[Row]:
    """All comparisons of notebooks that have both a local result and a reference.

    Raises
    ------
    ResultError
        There is nothing to compare, or a tolerance names a value that the reference does not have.
    """
    file = layout.root() / "notebooks" / "tolerances.yaml"
    rows = []
    for name, rules in (yaml.safe_load(file.read_text(encoding="utf8")) or {}).items():
        if all(results.path(name, s).is_file() for s in ("local", "reference")):
            rows += [_row(name, rule) for rule in rules]
    if not rows:
        raise ResultError(
            "nothing to compare: `make book` computes local results, results/reference holds the published"
        )
    return rows


def describe(rows: list[Row]) -> str:
    """One line a comparison."""
    lines = []
    for r in rows:
        verdict = {True: "ok", False: "DIFFERS", None: "not comparable"}[r.ok]
        lines.append(f"{r.notebook}  {r.value}: {_text(r.local)}, reference {_text(r.reference)}, {r.limit}: {verdict}")
    return "\n".join(lines)


def find(data: Any, where: str) -> Any:
    """A value inside result data: keys joined by dots, items of a list by one of their fields, `rows[name=int8].x`.

    Returns None where it does not exist.
    """
    for key, field, wanted in _STEP.findall(where):
        if field:
            data = next((item for item in data if str(item.get(field)) == wanted), None)
        else:
            data = data.get(key) if isinstance(data, dict) else None
        if data is None:
            return None
    return data


def _row(name: str, rule: dict[str, Any]) -> Row:
    local, reference = results.read(name, "local"), results.read(name, "reference")
    ours, theirs = find(local.data, rule["value"]), find(reference.data, rule["value"])
    if theirs is None:
        raise ResultError(f"tolerances.yaml: the reference of {name} has no {rule['value']}")
    if "absolute" in rule:
        allowed, limit = rule["absolute"], f"within {rule['absolute']:g}"
    else:
        allowed, limit = rule["relative"] * abs(theirs), f"within {rule['relative']:.0%}"
    comparable = ours is not None and not (rule.get("same") == "texts" and local.texts != reference.texts)
    ok = abs(ours - theirs) <= allowed if comparable else None
    return Row(name, rule["value"], ours, theirs, limit, ok)


def _text(x: float | None) -> str:
    return "none" if x is None else f"{x:.4g}"
