"""Every compute notebook runs from start to end with profile `smoke`."""

import pytest

from cachequant.study import layout, results, runner


@pytest.mark.parametrize("name", layout.notebooks())
def test_a_notebook_runs(name, tmp_path):
    todo = runner.plan(name, "smoke")
    if runner.up_to_date(todo, "local"):  # `make book PROFILE=smoke` ran it from these very inputs
        file, done = results.path(name, "local"), results.read(name, "local")
    else:
        file, done = tmp_path / f"{name}.json", runner.execute(todo, tmp_path, "local")
    assert done.data and file.with_suffix(".ipynb").is_file()
