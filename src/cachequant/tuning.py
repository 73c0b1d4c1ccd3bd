"""What ``auto`` stands for on this machine: the fixed table's scheme, or what `cachequant tune` measured and stored.

Candidates are `schemes.FAITHFUL`. The rule: of those whose requests are faster than the table's choice with the whole
95 % interval of the paired ratio, the one with the largest median; if there is none, the table's choice. A choice is
stored with the machine, the kernels and the version that it was measured with, and counts for no other.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cachequant
from cachequant import schemes
from cachequant.assets import cachedir
from cachequant.errors import AssetError
from cachequant.kernels import cpu, selfcheck

TABLE, TUNED = "table", "tuned"
PAIRS, FOURS = "w8a12", "int8-hadamard"  # the fixed table: for kernels that multiply int16 by twos, and int8 by fours


@dataclass(frozen=True)
class Choice:
    """The scheme that ``auto`` stands for, where that comes from (``table`` or ``tuned``), and why, for people."""

    scheme: str
    source: str
    why: str


def machine() -> dict[str, Any]:
    """What a measurement holds for: processor, kernel set, and the version of this library with its kernels."""
    return {
        "cpu": cpu.model(),
        "architecture": cpu.architecture(),
        "features": sorted(cpu.features()),
        "kernels": selfcheck.active().name,
        "cachequant": cachequant.__version__,
    }


def place() -> Path:
    """The file of this machine's choice, which need not exist."""
    digest = hashlib.sha256(json.dumps(machine(), sort_keys=True).encode()).hexdigest()
    return cachedir.root() / "tuned" / f"{digest[:16]}.json"


def current() -> Choice:
    """What ``auto`` stands for now; a stored choice that is damaged is passed over with a warning."""
    table, path = by_table(), place()
    try:
        if (note := _read(path)) is not None:
            return Choice(note["scheme"], TUNED, f"measured by `cachequant tune` on {note['date']}: {note['why']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(f"{path} is damaged and not used ({error}); `cachequant tune` writes it anew", stacklevel=2)
    return table


def by_table() -> Choice:
    """The fixed table, by what the CPU's kernels multiply.

    Pairs of int16 take inputs of 12 bits at no cost; where fours of int8 are faster, inputs of 8 bits are rotated.
    """
    kernels = selfcheck.active()
    if kernels.wide:
        return Choice(PAIRS, TABLE, f"fixed table: {kernels.name} multiplies pairs, which take inputs of 12 bits")
    return Choice(FOURS, TABLE, f"fixed table: {kernels.name} multiplies fours of 8 bits, so they are rotated")


def choose(ratios: Mapping[str, Mapping[str, float]], table: str) -> tuple[str, str]:
    """The rule: (scheme, why).

    Parameters
    ----------
    ratios : {scheme: {median, low, high}} of speed, paired with the table's choice; larger is faster.
    table : the table's choice.
    """
    faster = {name: r for name, r in ratios.items() if name != table and r["low"] > 1}
    if not faster:
        return table, "no candidate is faster than the fixed table's choice beyond the interval"
    best = max(faster, key=lambda name: faster[name]["median"])
    r = faster[best]
    return best, f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}] times the speed of {table}"


def store(scheme: str, why: str, date: str, measured: Mapping[str, Any]) -> Path:
    """Keep a choice for this machine and return its file.

    Parameters
    ----------
    date : of the measurement, ISO 8601.
    measured : what it rests on, for the record.
    """
    note = {"scheme": scheme, "why": why, "date": date, "machine": machine(), "measured": dict(measured)}
    with cachedir.atomic_file(path := place()) as partial:
        partial.write_text(json.dumps(note, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def forget() -> bool:
    """Remove this machine's choice; False if there was none."""
    try:
        place().unlink()
    except FileNotFoundError:
        return False
    return True


def _read(path: Path) -> dict[str, Any] | None:
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if note["machine"] != machine():
        raise AssetError("of another machine or version")
    if note["scheme"] not in schemes.FAITHFUL:
        raise AssetError(f"scheme {note['scheme']!r}: allowed are {', '.join(schemes.FAITHFUL)}")
    return {key: str(note[key]) for key in ("scheme", "why", "date")}
