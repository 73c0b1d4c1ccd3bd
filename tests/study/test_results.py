import dataclasses
import json
from dataclasses import dataclass

import numpy as np
import pytest

from cachequant.errors import ResultError
from cachequant.study import layout, provenance, results, strict


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project as the working directory."""
    (tmp_path / "_toc.yml").touch()
    (tmp_path / "notebooks" / "profiles").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("CACHEQUANT_RESULTS", "CACHEQUANT_DATA_FILE", "CACHEQUANT_CHECKPOINTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def result(**changes):
    origin = {
        **{"notebook": "09_x.py", "profile": "quick", "inputs": "0" * 64, "commit": None, "dirty": None},
        **{"start": "2026-01-01T00:00:00Z", "seconds": 1.5, "load": {"before": [0.5], "after": [0.5]}},
        **provenance.collect([{"name": "m", "sha256": "1"}], [{"name": "t", "sha256": "2"}]),
    }
    return {"schema": 1, "parameters": {"n": 1}, "provenance": origin, "data": {"x": 1}} | changes


def put(set_name, value=None, name="09_x"):
    results.write(results.path(name, set_name), result() if value is None else value)


def test_local_comes_before_reference(project):
    put("reference", result(data={"x": "reference"}))
    assert results.load("09_x").set == "reference"
    assert results.both("09_x")[1] is None
    put("local", result(data={"x": "local"}))
    shown, reference = results.both("09_x")
    assert (shown.set, shown.data, shown["data"]["x"]) == ("local", {"x": "local"}, "local")
    assert (reference.set, reference.data) == ("reference", {"x": "reference"})


def test_a_chosen_run_comes_first_and_the_rest_falls_back_to_the_reference(project, monkeypatch):
    for set_name in ("local", "reference", "runs/mine"):
        put(set_name)
    put("reference", name="08_y")
    put("local", name="08_y")
    monkeypatch.setenv("CACHEQUANT_RESULTS", "runs/mine")
    assert results.load("09_x").set == "runs/mine"
    assert results.load("08_y").set == "reference"


def test_names_what_was_measured(project):
    put("local")
    shown = results.load("09_x")
    assert (shown.models, shown.texts) == (["m"], ["t"])
    assert provenance.cpu()["model"] in shown.machine
    cpu = {"model": "A", "instruction_sets": ["avx2", "avx512f", "avx512vnni"], "cores": 1, "logical": 2}
    other = dataclasses.replace(shown, provenance=shown.provenance | {"cpu": cpu, "threads": {}})
    assert other.machine == "A with avx512vnni, 1 thread"


def test_a_missing_result_names_the_sets(project):
    with pytest.raises(ResultError, match=r"'09_x'.*local,reference.*make book"):
        results.load("09_x")


@pytest.mark.parametrize("name", ["../x", "runs/", "runs/../x", "runs/a/b", "other", "runs/.hidden", "/etc"])
def test_a_set_stays_inside_the_results_folder(project, name):
    with pytest.raises(ResultError, match="allowed"):
        layout.set_folder(name)


def broken():
    good = result()
    yield "no field", {k: v for k, v in good.items() if k != "data"}
    yield "schema is 2", good | {"schema": 2}
    yield "schema is True", good | {"schema": True}
    yield "data is", good | {"data": []}
    yield "no field 'cpu'", good | {"provenance": {k: v for k, v in good["provenance"].items() if k != "cpu"}}
    yield "seconds is", good | {"provenance": good["provenance"] | {"seconds": "1"}}
    yield "texts: no field 'sha256'", good | {"provenance": good["provenance"] | {"texts": [{"name": "t"}]}}
    yield "not an object", []


@pytest.mark.parametrize(("message", "value"), list(broken()))
def test_a_result_that_does_not_follow_the_schema_is_refused(project, message, value):
    put("local", value)
    with pytest.raises(ResultError, match=message) as error:
        results.load("09_x")
    assert "results/local/09_x.json" in str(error.value)


@pytest.mark.parametrize("text", ['{"schema": 1', '{"x": NaN}', '{"x": -Infinity}', ""])
def test_what_is_not_strict_json_is_refused(project, text):
    put("local")
    results.path("09_x", "local").write_text(text)
    with pytest.raises(ResultError, match="not JSON"):
        results.load("09_x")


def test_save_converts_and_records(project):
    @dataclass
    class Point:
        x: np.float32
        y: tuple

    results.save(
        {"a": np.float32(0.5), "b": np.arange(3), "c": Point(np.float32(2), (1, None)), "d": np.bool_(True)},
        models=[{"name": "gpt2-random", "sha256": "f" * 64, "random": True}],
    )
    found = json.loads((project / "result-data.json").read_text())
    assert found["data"] == {"a": 0.5, "b": [0, 1, 2], "c": {"x": 2.0, "y": [1, None]}, "d": True}
    assert found["provenance"]["models"] == [{"name": "gpt2-random", "sha256": "f" * 64, "random": True}]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"rows": [{"x": 1.0}, {"x": float("nan")}]}, r"data\.rows\[1\]\.x is nan"),
        ({"x": np.array([1.0, np.inf])}, r"data\.x\[1\] is inf"),
        ({"x": {1: 2}}, r"data\.x has the key 1"),
        ({"x": {1, 2}}, r"data\.x is a set"),
    ],
)
def test_save_refuses_what_json_cannot_hold_and_leaves_the_earlier_file(project, data, where):
    results.save({"x": 1})
    target = project / "result-data.json"
    before = target.read_bytes()
    with pytest.raises(ResultError, match=where):
        results.save(data)
    assert target.read_bytes() == before
    assert not list(project.glob(".run-*"))


def test_strict_keeps_plain_values():
    value = {"a": [1, 2.5, "x", None, True, {"b": []}]}
    assert strict.plain(value, "data") == value


def test_lists_of_numbers_stand_on_one_line(project):
    value = {"a": [1, 2.5, None], "b": [[1, 2], ["x", "[ y,\n z ]"]], "c": [], "d": [{"e": [True]}]}
    results.write(project / "x.json", value)
    text = (project / "x.json").read_text()
    assert json.loads(text) == value
    assert ' "a": [1, 2.5, null],\n' in text and "[1, 2]" in text and "[true]" in text


def test_a_failed_write_leaves_nothing_behind(project):
    with pytest.raises(ValueError):
        results.write(project / "x.json", {"a": float("nan")})
    assert not list(project.glob(".run-*")) and not (project / "x.json").exists()


def test_checkpoints_follow_the_runner_and_are_fresh_without_it(project, monkeypatch):
    first, second = results.checkpoint("grid"), results.checkpoint("grid")
    assert first != second and not list(first.iterdir())
    monkeypatch.setenv("CACHEQUANT_CHECKPOINTS", str(project / "c"))
    assert results.checkpoint("grid") == results.checkpoint("grid") == project / "c" / "grid"
    assert results.checkpoint("presets") == project / "c" / "presets"
