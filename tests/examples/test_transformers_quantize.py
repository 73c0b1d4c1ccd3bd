"""The script for transformers users, on a tiny model in a folder."""

import runpy
import sys
from pathlib import Path

import pytest

from helpers import checkpoint

SCRIPT = Path(__file__).parents[2] / "examples" / "transformers_quantize.py"


@pytest.mark.parametrize("options", [[], ["--scheme", "bfp8", "--head", "int8-block32"]], ids=["default", "all"])
def test_it_quantizes_saves_and_loads_twice(options, tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))
    model = checkpoint("llama-gqa-tied", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), model, str(tmp_path / "out"), "--new", "5", *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    out = capsys.readouterr().out
    assert "same bits after reloading: True" in out
    theirs, ours = (
        line.partition(": ")[2] for line in out.splitlines() if line.startswith(("generated", "cachequant"))
    )
    assert theirs.endswith(f"{ours[1:-1]}]")
