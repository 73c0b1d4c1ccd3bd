"""Runs one compute notebook: py:percent source -> checked parameters -> papermill -> result file, moved as a whole.

Nothing of an earlier result is touched until the new one is complete.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachequant import errors
from cachequant.errors import ParameterError, ResultError
from cachequant.study import layout, params, peers, profiles, provenance, results, sources


@dataclass(frozen=True)
class Plan:
    """One notebook with its checked parameters; `inputs` is the digest of all that its result depends on."""

    name: str
    source: Path
    parameters: dict[str, Any]
    profile: profiles.Profile
    inputs: str
    work: str


def plan(notebook: str, profile: str = "quick", overrides: Mapping[str, Any] | None = None) -> Plan:
    """Checks everything that can be checked without starting a kernel.

    Raises
    ------
    ParameterError
        An unknown notebook, profile or parameter, or a value of another type.
    """
    source = layout.notebook(notebook)
    chosen = profiles.read(profile)
    known = params.declared(_read(source).cells)
    try:
        values = params.check(chosen.parameters.get(source.stem, {}) | dict(overrides or {}), known)
    except ParameterError as error:
        raise ParameterError(f"{source.stem}: {error}") from None
    text = source.read_text(encoding="utf8")
    locks = ["requirements.lock", *(["requirements-peers.lock"] if source.stem in peers.NOTEBOOKS else [])]
    lock = "".join((layout.root() / name).read_text(encoding="utf8") for name in locks)
    # with `auto` the environment decides on the text
    place = bool(os.environ.get("CACHEQUANT_WIKITEXT")) if "auto" in values.values() else None
    work = hashlib.sha256(f"{sources.digest(text)} {sorted(values.items())} {place} {lock}".encode()).hexdigest()
    inputs = hashlib.sha256(f"{work} {text}".encode()).hexdigest()
    return Plan(source.stem, source, values, chosen, inputs, work)


def up_to_date(todo: Plan, set_name: str) -> bool:
    """Whether the set already has the result, and the executed notebook, of exactly these inputs."""
    file = results.path(todo.name, set_name)
    if not (file.is_file() and file.with_suffix(".ipynb").is_file()):
        return False
    try:
        return results.read(todo.name, set_name).provenance["inputs"] == todo.inputs
    except ResultError:
        return False


def run(
    notebook: str,
    set_name: str = "runs/latest",
    profile: str = "quick",
    overrides: Mapping[str, Any] | None = None,
) -> results.Result:
    """Runs a compute notebook and writes `results/<set_name>/<name>.json` and `.ipynb`.

    Parameters
    ----------
    notebook : str
        Name, number or file: `05_quality_grid`, `05`, `notebooks/05_quality_grid.py`.
    set_name : str
        `local`, `reference` or `runs/NAME`.
    profile : str
        Whose parameters to start from.
    overrides : mapping, optional
        Parameters that differ from the profile's.

    Raises
    ------
    ParameterError, ResultError
        Before any compute: something unknown or of the wrong type, or an unknown set. After it: the notebook saved
        nothing.
    papermill.PapermillExecutionError
        A cell failed.
    """
    folder = layout.set_folder(set_name)
    return execute(plan(notebook, profile, overrides), folder, set_name)


def execute(todo: Plan, folder: Path, set_name: str) -> results.Result:
    """Runs a plan into a folder; see `run`."""
    checkpoints = layout.root() / "results" / ".checkpoints" / f"{todo.name}-{todo.work[:16]}"
    commit, dirty = provenance.commit(layout.root())
    before, start, clock = provenance.load(), time.gmtime(), time.perf_counter()
    with _made(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".run-") as name:
        temporary = Path(name)
        handed = temporary / "data.json"
        done = _papermill(todo, temporary, {"CACHEQUANT_DATA_FILE": handed, "CACHEQUANT_CHECKPOINTS": checkpoints})
        seconds = time.perf_counter() - clock
        if not handed.is_file():
            raise ResultError(f"{todo.name} ended without results.save(...)")
        saved = results.parse(handed.read_text(encoding="utf8"), todo.name)
        origin = {
            **{"notebook": todo.source.name, "profile": todo.profile.name, "inputs": todo.inputs},
            **{"commit": commit, "dirty": dirty, "start": time.strftime("%Y-%m-%dT%H:%M:%SZ", start)},
            **{"seconds": round(seconds, 3), "load": {"before": before, "after": provenance.load()}},
            **saved["provenance"],
        }
        result = {"schema": results.SCHEMA, "parameters": todo.parameters, "provenance": origin, "data": saved["data"]}
        results.validate(result, todo.name)
        results.write(temporary / "result.json", result)
        _write_notebook(done, temporary / "executed.ipynb")
        os.replace(temporary / "executed.ipynb", folder / f"{todo.name}.ipynb")
        os.replace(temporary / "result.json", folder / f"{todo.name}.json")
    shutil.rmtree(checkpoints, ignore_errors=True)
    return results.Result(todo.name, set_name, todo.parameters, origin, saved["data"])


def normalize(notebook) -> None:
    """Removes what changes from run to run or names this machine; times are in the result's provenance.

    Warnings that a cell printed hold folder names: they are moved to this process's stderr.
    """
    notebook.metadata.pop("papermill", None)
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i}"
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            for output in cell.outputs:
                if output.get("name") == "stderr":
                    print(output["text"], end="", file=sys.stderr)
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]


def _read(source: Path):
    try:
        import jupytext
    except ImportError:
        raise ParameterError("running notebooks needs the extra `book`: pip install 'cachequant[book]'") from None
    return jupytext.read(source)


def _papermill(todo: Plan, temporary: Path, variables: dict[str, Path]):
    import jupytext
    import papermill

    jupytext.write(_read(todo.source), temporary / "in.ipynb")
    with _environment(variables), _typed():
        return papermill.execute_notebook(
            str(temporary / "in.ipynb"),
            str(temporary / "out.ipynb"),
            parameters=todo.parameters,
            kernel_name="python3",
            execution_timeout=todo.profile.timeout,
            cwd=str(layout.root() / "notebooks"),
            progress_bar=False,
        )


@contextmanager
def _made(folder: Path):
    """The folder of a set, which a run that failed does not leave behind empty."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # results are in it
            folder.rmdir()
        raise


@contextmanager
def _typed():
    """Bad input that only the notebook's own calls can notice is the same error as outside of it."""
    from papermill.exceptions import PapermillExecutionError

    try:
        yield
    except PapermillExecutionError as error:
        kind = getattr(errors, error.ename, None)
        if kind is None:
            raise
        raise kind(error.evalue) from None


@contextmanager
def _environment(variables: dict[str, Path]):
    """What the kernel inherits: quiet, this environment's kernel, none of the user's IPython start-up files."""
    new = {name: str(value.resolve()) for name, value in variables.items()}
    new |= {"IPYTHONDIR": str(layout.root() / "notebooks" / "ipython")}
    new |= {"JUPYTER_PREFER_ENV_PATH": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    new |= {"TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}
    old = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _write_notebook(notebook, target: Path) -> None:
    import nbformat

    normalize(notebook)
    nbformat.write(notebook, target)
