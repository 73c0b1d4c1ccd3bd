"""Steps of a long computation whose results are kept, so that a killed notebook goes on with the first missing one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cachequant.study import results, strict


class Steps:
    """JSON results by name in a folder, which belongs to one computation: see `results.checkpoint`.

    Parameters
    ----------
    folder : where they are kept, one file a step.
    """

    def __init__(self, folder: Path):
        self._folder = Path(folder)

    def run(self, name: str, compute: Callable[..., Any], *arguments, **more) -> Any:
        """What `compute(*arguments, **more)` returned when it first finished, as plain JSON values.

        Parameters
        ----------
        name : of the step, unique in the folder; slashes and commas become other characters in the file's name.
        """
        file = self._folder / f"{name.replace('/', '_').replace(',', '_')}.json"
        if file.exists():
            return results.parse(file.read_text(encoding="utf8"), file.name)
        found = strict.plain(compute(*arguments, **more), name)
        results.write(file, found)
        return found
