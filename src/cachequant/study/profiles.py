"""Profiles: which parameters, budgets and time limit the compute notebooks get (`notebooks/profiles/NAME.yaml`).

timeout: 1800                        # seconds a cell may take
budgets: {01_baseline: 1.5}          # minutes on 2 cores, reported, not enforced
parameters:
  01_baseline: {repeats: 3}          # what differs from the notebook's own defaults
"""

from dataclasses import dataclass
from typing import Any

import yaml

from cachequant.errors import ParameterError
from cachequant.study import layout


@dataclass(frozen=True)
class Profile:
    """One profile as read."""

    name: str
    timeout: int
    budgets: dict[str, float]
    parameters: dict[str, dict[str, Any]]


def read(name: str) -> Profile:
    """Reads a profile.

    Raises
    ------
    ParameterError
        No such profile, an unknown key, or a notebook that does not exist.
    """
    file = layout.root() / "notebooks" / "profiles" / f"{name}.yaml"
    if name not in layout.profiles():
        raise ParameterError(f"unknown profile {name!r}; known: {', '.join(layout.profiles())}")
    found = yaml.safe_load(file.read_text(encoding="utf8")) or {}
    if odd := found.keys() - {"timeout", "budgets", "parameters"}:
        raise ParameterError(f"{file.name}: unknown key {sorted(odd)[0]!r}; allowed: timeout, budgets, parameters")
    budgets, parameters = found.get("budgets") or {}, found.get("parameters") or {}
    if odd := (budgets.keys() | parameters.keys()) - layout.notebooks().keys():
        raise ParameterError(f"{file.name}: no notebook {sorted(odd)[0]!r}; known: {', '.join(layout.notebooks())}")
    return Profile(name, found.get("timeout", 3600), budgets, {n: p or {} for n, p in parameters.items()})
