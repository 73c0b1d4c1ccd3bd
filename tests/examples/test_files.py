"""The examples about files run as a user would run them, on a tiny model."""

import runpy
from pathlib import Path

import pytest

import helpers
from helpers import checkpoint

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))
    wide = helpers.LLAMA | dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, head_dim=16)
    monkeypatch.setitem(helpers.TINY, "wide", wide)
    return checkpoint("wide", str(tmp_path))


@pytest.mark.parametrize(("name", "target"), [("checkpoint.py", "out"), ("gguf.py", "m.gguf")])
def test_an_example_runs(name, target, model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [name, model, str(tmp_path / target)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    out = capsys.readouterr().out
    assert (tmp_path / target).exists()
    assert ": True" in out.splitlines()[-1]
