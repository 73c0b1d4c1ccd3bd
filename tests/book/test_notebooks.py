"""Every compute notebook runs from start to end with profile `smoke`."""

import pytest

from cachequant.study import layout, runner


@pytest.mark.parametrize("name", layout.notebooks())
def test_a_notebook_runs(name, tmp_path):
    done = runner.execute(runner.plan(name, "smoke"), tmp_path, "local")
    assert done.data and (tmp_path / f"{name}.ipynb").is_file()
