"""The outcome of one check of a model, and of all of them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One check: `ok` is None if it did not run, for the reason in `note`."""

    name: str
    ok: bool | None
    value: float | None
    limit: float | None
    note: str = ""


@dataclass(frozen=True)
class Report:
    """All checks of one model; `text` names what its token ids came from."""

    model: str
    text: str
    checks: list[Check]

    @property
    def ok(self) -> bool:
        return bool(self.checks) and all(c.ok for c in self.checks)

    def to_json(self) -> dict[str, Any]:
        checks = [{k: v for k, v in vars(c).items() if k != "note" or v} for c in self.checks]
        return {"ok": self.ok, "model": self.model, "text": self.text, "checks": checks}
