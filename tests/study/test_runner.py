"""The pipeline on a tiny project of its own: source -> checked parameters -> papermill -> result file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cachequant.errors import InputError, ParameterError, ResultError
from cachequant.study import compute, layout, results, runner, stage

HEADER = """\
# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,mystnb,-all
#     notebook_metadata_filter: kernelspec,-all
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
"""
NOTEBOOK = f"""{HEADER}
# %% [markdown]
# # Compute: squares

# %% tags=["parameters"]
count: int = 3
fail: bool = False
steps: list[int] = [1]

# %%
import sys

from cachequant.study import results

part = results.checkpoint("part") / "done"
seen = part.exists()
part.write_text("x")
print("warning", file=sys.stderr)
assert not fail, "as asked"

# %%
rows = [{{"n": n, "square": n * n}} for n in range(count)]
results.save({{"rows": rows, "seen": seen}}, texts=[{{"name": "t", "sha256": "0"}}])
"""
PROFILE = "timeout: 60\nbudgets: {01_squares: 0.5}\nparameters:\n  01_squares: {count: 4}\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "_toc.yml").touch()
    (tmp_path / "requirements.lock").touch()
    (tmp_path / "notebooks" / "profiles").mkdir(parents=True)
    (tmp_path / "notebooks" / "profiles" / "quick.yaml").write_text(PROFILE)
    (tmp_path / "notebooks" / "01_squares.py").write_text(NOTEBOOK)
    (tmp_path / "book").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CACHEQUANT_RESULTS", raising=False)
    return tmp_path


def test_computes_what_is_out_of_date_and_nothing_else(project, capsys):
    compute.compute("local", "quick")
    first = results.load("01_squares")
    assert [r["square"] for r in first.data["rows"]] == [0, 1, 4, 9]
    assert first.parameters == {"count": 4, "fail": False, "steps": [1]}
    assert first.provenance["profile"] == "quick" and first.provenance["seconds"] > 0
    assert first.texts == ["t"]
    assert "budget 30 s" in capsys.readouterr().out

    compute.compute("local", "quick")
    assert "up to date" in capsys.readouterr().out
    assert "01_squares" in compute.report("local", "quick") and "20 min" in compute.report("local", "quick")

    source = project / "notebooks" / "01_squares.py"
    source.write_text(source.read_text().replace("# # Compute: squares", "# # Compute: squares again"))
    assert not runner.up_to_date(runner.plan("01"), "local"), "prose is part of the executed notebook"


def test_executed_notebooks_are_the_same_byte_for_byte_and_name_no_folder(project):
    files = []
    for name in ("runs/a", "runs/b"):
        runner.run("01_squares", name)
        files.append((layout.set_folder(name) / "01_squares.ipynb").read_text())
    assert files[0] == files[1]
    assert str(project) not in files[0] and str(Path.home()) not in files[0]
    assert "papermill" not in json.loads(files[0])["metadata"]
    assert "stderr" not in files[0].replace("sys.stderr", ""), "stderr goes to the terminal"
    assert not list((project / "results").rglob(".run-*"))


def test_a_failure_leaves_the_earlier_result_and_the_unfinished_work(project):
    pytest.importorskip("papermill")
    from papermill import PapermillExecutionError

    runner.run("01", "runs/a")
    folder = layout.set_folder("runs/a")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(PapermillExecutionError, match="as asked"):
        runner.run("01", "runs/a", overrides={"fail": True})
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    left = list((project / "results" / ".checkpoints").rglob("done"))
    assert len(left) == 1, "the failed run's checkpoint is kept, the successful run's is gone"


def test_a_failed_first_run_leaves_no_folder(project, monkeypatch):
    def failing(*_):
        raise InputError("as asked")

    monkeypatch.setattr(runner, "_papermill", failing)
    with pytest.raises(InputError, match="as asked"):
        runner.run("01", "runs/a")
    assert not layout.set_folder("runs/a").exists()


def test_a_checkpoint_is_used_by_the_same_inputs_only(project):
    done = runner.plan("01", overrides={"count": 2})
    for work, seen in ((done.work, True), ("f" * 64, False)):
        folder = project / "results" / ".checkpoints" / f"01_squares-{work[:16]}" / "part"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "done").touch()
        assert runner.run("01", "runs/a", overrides={"count": 2}).data["seen"] is seen


def test_bad_input_is_refused_before_a_kernel_starts(project, monkeypatch):
    monkeypatch.setattr(runner, "_papermill", lambda *_: pytest.fail("a kernel was started"))
    for call, error, message in [
        (lambda: runner.run("01", overrides={"counts": 1}), ParameterError, r"01_squares.*'counts'.*known"),
        (lambda: runner.run("01", overrides={"steps": ["a"]}), ParameterError, r"list\[int\]"),
        (lambda: runner.run("07_other"), ParameterError, "01_squares"),
        (lambda: runner.run("01", profile="fast"), ParameterError, "known: quick"),
        (lambda: runner.run("01", "elsewhere"), ResultError, "runs/NAME"),
    ]:
        with pytest.raises(error, match="(?s)" + message):
            call()


def test_a_profile_with_something_unknown_is_refused(project):
    file = project / "notebooks" / "profiles" / "quick.yaml"
    for text, message in [
        ("time: 3", "'time'"),
        ("parameters: {02_x: {}}", "02_x"),
        ("budgets: {09: 1}", "no notebook"),
    ]:
        file.write_text(text)
        with pytest.raises(ParameterError, match=message):
            runner.plan("01")


def test_a_notebook_that_saves_nothing_is_an_error(project):
    source = project / "notebooks" / "01_squares.py"
    source.write_text(source.read_text().partition("# %%\nrows")[0])
    with pytest.raises(ResultError, match="without results.save"):
        runner.run("01")


def test_notebooks_run_under_plain_papermill(project):
    run = lambda *args: subprocess.run(args, check=True, capture_output=True, text=True)  # noqa: E731
    bin_folder = Path(sys.executable).parent
    run(str(bin_folder / "jupytext"), "--to", "ipynb", "notebooks/01_squares.py", "-o", "plain.ipynb")
    run(str(bin_folder / "papermill"), "plain.ipynb", "out.ipynb", "-k", "python3", "-p", "count", "2")
    assert len(json.loads(Path("result-data.json").read_text())["data"]["rows"]) == 2


def test_staging_shows_the_chosen_run_and_says_what_falls_back(project, monkeypatch):
    with pytest.raises(ResultError, match="no result '01_squares'"):
        stage.stage()
    runner.run("01", "reference")
    assert stage.stage() == ["01_squares: results/reference (nothing in results/local)"]
    runner.run("01", "runs/mine", overrides={"count": 1})
    monkeypatch.setenv("CACHEQUANT_RESULTS", "runs/mine")
    assert stage.stage() == ["01_squares: results/runs/mine"]
    shown = project / "book" / "executed" / "01_squares.json"
    assert shown.read_bytes() == results.path("01_squares", "runs/mine").read_bytes()
    stamp = shown.stat().st_mtime_ns
    stage.stage()
    assert shown.stat().st_mtime_ns == stamp, "nothing is copied that has not changed"
    monkeypatch.setenv("CACHEQUANT_RESULTS", "runs/absent")
    with pytest.raises(ResultError, match="there are: runs/mine"):
        stage.stage()


def test_bad_values_in_a_notebook_are_the_error_that_they_are_outside():
    from papermill.exceptions import PapermillExecutionError

    def failed(name):
        return PapermillExecutionError(0, 1, "cell", name, "tokens -4 has to be at least 2", [])

    with pytest.raises(InputError, match="tokens -4"), runner._typed():
        raise failed("InputError")
    with pytest.raises(PapermillExecutionError), runner._typed():
        raise failed("KeyError")
