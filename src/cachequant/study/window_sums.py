"""Sums over the tokens of each window of a text, kept in a file so that a killed evaluation goes on where it was."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cachequant.errors import ResultError
from cachequant.kernels.score import TokenScores
from cachequant.study import results

ALONE = ("nll",)
COMPARED = ("nll", "kl", "top1", "top5", "centred_error", "mean_error", "max_error")
FILE = "windows.json"
TAIL = 64  # largest divergences of a window that are kept one by one


class WindowSums:
    """{scheme: {window: sums}}, written as a whole after each window.

    Parameters
    ----------
    folder : where the file is kept; None keeps nothing.
    identity : what the sums belong to: model, text, window.

    Raises
    ------
    ResultError : the file in `folder` belongs to something else, or is not such a file.
    """

    def __init__(self, folder: Path | None, identity: dict[str, Any]):
        self._file = None if folder is None else Path(folder) / FILE
        self._identity = identity
        self._formats: dict[str, str] = {}
        self._sums: dict[str, dict[int, dict[str, Any]]] = {}
        if self._file is not None and self._file.exists():
            self._read()

    def _read(self) -> None:
        try:
            found = json.loads(self._file.read_text(encoding="utf8"))
            identity, sums, self._formats = found["identity"], found["sums"], dict(found.get("formats", {}))
            self._sums = {s: {int(w): dict(v) for w, v in windows.items()} for s, windows in sums.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ResultError(f"{self._file.name} is not a file of window sums ({error!r}); delete it") from None
        if identity != self._identity:
            raise ResultError(
                f"{self._file.name} holds sums of {identity}, not of {self._identity}; use another folder"
            )

    def expect(self, scheme: str, format: str) -> None:
        """Forget the sums of a scheme of this name that was another format."""
        if self._formats.setdefault(scheme, format) != format:
            self._formats[scheme] = format
            self._sums.pop(scheme, None)

    def has(self, scheme: str, window: int, scored: int) -> bool:
        """Whether this window is done, with this many scored tokens (the last one grows with a longer text)."""
        return self._sums.get(scheme, {}).get(window, {}).get("scored") == scored

    def add(self, scheme: str, window: int, scored: int, sums: dict[str, float], tail: Sequence[float] = ()) -> None:
        """Keep the sums of a window, and the largest divergences of its tokens."""
        self._sums.setdefault(scheme, {})[window] = {"scored": scored, **sums, "tail": list(tail)}

    def save(self) -> None:
        if self._file is not None:
            results.write(self._file, {"identity": self._identity, "formats": self._formats, "sums": self._sums})

    def columns(self, scheme: str, windows: int) -> dict[str, list[float]]:
        """{quantity: its sum in windows 0, 1, ...}."""
        rows = [self._sums[scheme][w] for w in range(windows)]
        return {key: [row[key] for row in rows] for key in rows[0] if key != "tail"}

    def tails(self, scheme: str, windows: int) -> list[list[float]]:
        """The `TAIL` largest divergences of windows 0, 1, ..., largest first."""
        return [self._sums[scheme][w].get("tail", []) for w in range(windows)]


def empty(compared: bool) -> dict[str, float]:
    """Sums of no tokens."""
    return dict.fromkeys(COMPARED if compared else ALONE, 0.0)


def accumulate(sums: dict[str, float], scores: TokenScores) -> None:
    """Add tokens; of `max_error` the largest is kept."""
    for key, total in sums.items():
        values = getattr(scores, key)
        sums[key] = max(total, float(values.max())) if key == "max_error" else total + float(values.sum())


def largest(divergences: Iterable[np.ndarray]) -> list[float]:
    """The `TAIL` largest of the divergences of a window's tokens, largest first."""
    found = np.sort(np.concatenate(list(divergences)))[::-1][:TAIL]
    return [float(f"{value:.6g}") for value in found]
