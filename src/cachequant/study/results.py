"""Result files: `{schema, parameters, provenance, data}`, one a compute notebook and set of results.

A notebook calls `save` once, at its end. Pages call `load` or `both`: what this machine measured comes before the
published reference. The environment variable CACHEQUANT_RESULTS names another set to show, such as `runs/NAME`.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachequant.errors import ResultError
from cachequant.study import layout, provenance, strict

SCHEMA = 1
_WIDEST = ("avx512vnni", "avxvnni", "avx512f", "avx2", "dotprod", "neon")  # what decides how fast kernels are
_NUMBERS = re.compile(r"\[\n([^\[\]{}\"]*)\n *\]")  # a list of plain numbers, which is then put on one line
_FIELDS = {"schema": int, "parameters": dict, "provenance": dict, "data": dict}
_PROVENANCE = {
    **{"notebook": str, "profile": str, "inputs": str, "commit": (str, type(None)), "dirty": (bool, type(None))},
    **{"start": str, "seconds": (int, float), "load": dict, "versions": dict, "cpu": dict, "threads": dict},
    **{"ram_bytes": int, "os": str, "models": list, "texts": list},
}


@dataclass(frozen=True)
class Result:
    """One result file as read: `set` is `local`, `reference` or `runs/NAME`."""

    name: str
    set: str
    parameters: dict[str, Any]
    provenance: dict[str, Any]
    data: dict[str, Any]

    def __getitem__(self, key: str) -> dict[str, Any]:
        return {"parameters": self.parameters, "provenance": self.provenance, "data": self.data}[key]

    @property
    def models(self) -> list[str]:
        """Names of the models measured; random weights are marked."""
        return [m["name"] + (" (random weights)" if m.get("random") else "") for m in self.provenance["models"]]

    @property
    def texts(self) -> list[str]:
        """Names of the texts scored."""
        return [t["name"] for t in self.provenance["texts"]]

    @property
    def machine(self) -> str:
        """Processor, its widest instructions for 8-bit products, and threads.

        Threads are numba's, else one a physical core, which is the library's default.
        """
        cpu = self.provenance["cpu"]
        count = self.provenance["threads"].get("numba") or cpu["cores"] or cpu["logical"]
        widest = next((f" with {name}" for name in _WIDEST if name in cpu["instruction_sets"]), "")
        return f"{cpu['model']}{widest}, {count} thread{'s' * (count != 1)}"

    @property
    def commit(self) -> str:
        """Short commit of the clone that computed it, with a plus sign if there were changes beside it."""
        return (self.provenance["commit"] or "unknown")[:10] + ("+" if self.provenance["dirty"] else "")


def sets() -> list[str]:
    """Sets of results in the order in which they are looked through."""
    chosen = os.environ.get("CACHEQUANT_RESULTS")
    order = [chosen] if chosen else ["local"]
    return order + ["reference"] * ("reference" not in order)


def path(name: str, set_name: str) -> Path:
    """File of the result `name` in a set, whether it exists or not."""
    return layout.set_folder(set_name) / f"{name}.json"


def load(name: str) -> Result:
    """The result to show: of the first set of `sets()` that has one.

    Raises
    ------
    ResultError
        No set has it, or the file does not follow the schema.
    """
    if exists(name):
        return read(name, next(s for s in sets() if path(name, s).is_file()))
    raise ResultError(f"no result {name!r} in results/{{{','.join(sets())}}}; `make book` computes it")


def exists(name: str) -> bool:
    """Whether `load` would find a file."""
    return any(path(name, set_name).is_file() for set_name in sets())


def present(set_name: str) -> bool:
    """Whether a set has a result of any notebook."""
    return any(path(name, set_name).is_file() for name in layout.notebooks())


def both(name: str) -> tuple[Result, Result | None]:
    """The result to show, and the reference beside it if that is another one."""
    shown = load(name)
    other = shown.set != "reference" and path(name, "reference").is_file()
    return shown, read(name, "reference") if other else None


def every() -> list[tuple[Result, Result | None]]:
    """`both` of every compute notebook that has a result, in the order of the study."""
    return [both(name) for name in layout.notebooks() if exists(name)]


def read(name: str, set_name: str) -> Result:
    """Reads and checks one result file."""
    try:
        text = path(name, set_name).read_text(encoding="utf8")
    except FileNotFoundError:
        raise ResultError(f"no result {name!r} in results/{set_name}") from None
    found = parse(text, f"results/{set_name}/{name}.json")
    validate(found, f"results/{set_name}/{name}.json")
    return Result(name, set_name, found["parameters"], found["provenance"], found["data"])


def parse(text: str, where: str) -> Any:
    """Strict JSON: NaN and infinities, which Python's reader lets through, are errors."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise ResultError(f"{where} is not JSON: {error}") from None


def validate(found: Any, where: str) -> None:
    """Checks the frame of a result file.

    Raises
    ------
    ResultError
        Names the file, the field and what it has to be.
    """
    _check(found, _FIELDS, where)
    if found["schema"] != SCHEMA:
        raise ResultError(f"{where}: schema is {found['schema']}; this version reads {SCHEMA}")
    origin = found["provenance"]
    _check(origin, _PROVENANCE, f"{where}: provenance")
    _check(
        origin["cpu"],
        {"model": str, "instruction_sets": list, "cores": (int, type(None)), "logical": int},
        f"{where}: cpu",
    )
    _check(origin["load"], {"before": list, "after": list}, f"{where}: load")
    for kind in ("models", "texts"):
        for item in origin[kind]:
            _check(item, {"name": str, "sha256": str}, f"{where}: {kind}")


def save(data: dict[str, Any], models: Iterable[Any] = (), texts: Iterable[Any] = ()) -> None:
    """Hands the data of a compute notebook over; called once, at its end.

    The runner completes it to a result file. Under plain papermill the file is `result-data.json` in the working
    directory.

    Parameters
    ----------
    data : dict
        What pages read: JSON values, NumPy scalars and arrays, dataclasses. NaN and infinities are refused.
    models, texts : iterables
        What was measured, for the provenance: objects with `name` and `sha256`.
    """
    target = Path(os.environ.get("CACHEQUANT_DATA_FILE") or "result-data.json")
    write(target, {"provenance": provenance.collect(models, texts), "data": strict.plain(data, "data")})


def checkpoint(name: str) -> Path:
    """Folder for the parts of a long computation, kept until its notebook has succeeded.

    It belongs to the notebook, its parameters and the library as they are now: after a change of any of these the
    folder is another, empty one. Under plain papermill it is a new temporary folder.

    Parameters
    ----------
    name : str
        Tells several checkpoints of one notebook apart.
    """
    base = os.environ.get("CACHEQUANT_CHECKPOINTS") or tempfile.mkdtemp(prefix="cachequant-")
    folder = Path(base) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(target: Path, value: Any) -> None:
    """Writes JSON to a file as a whole: a temporary file beside it is moved into place."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    text = _NUMBERS.sub(lambda m: "[" + " ".join(m[1].split()) + "]", text)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".run-")
    try:
        with os.fdopen(handle, "w", encoding="utf8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _check(found: Any, fields: dict[str, Any], where: str) -> None:
    if not isinstance(found, dict):
        raise ResultError(f"{where}: {found!r} is not an object")
    for field, kinds in fields.items():
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if field not in found:
            raise ResultError(f"{where}: no field {field!r}; needed: {', '.join(fields)}")
        if type(found[field]) not in kinds:
            names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
            raise ResultError(f"{where}: {field} is {found[field]!r}; it has to be {names}")


def _refuse(constant: str):
    raise ValueError(f"{constant} is not allowed")
