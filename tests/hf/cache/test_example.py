"""The downstream script, as a user runs it."""

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

from helpers import transformers_model

SCRIPT = Path(__file__).parents[3] / "examples" / "transformers_cache.py"


def test_the_script_runs(tmp_path, capsys):
    transformers_model("llama-coded", max_position_embeddings=400, eos_token_id=None).save_pretrained(tmp_path)
    runpy.run_path(str(SCRIPT))["main"]([str(tmp_path), "--kv", "k8v8", "--prompt", "300", "--new", "12"])
    found = re.findall(r"(\S+(?: k8v8)?): +([\d,]+) bytes, .* (\d+) of 12 tokens", capsys.readouterr().out)
    assert [name for name, *_ in found] == ["DynamicCache", "RotatedCache k8v8", "attach k8v8"]
    assert [tokens for *_, tokens in found[1:]] == [found[1][2]] * 2  # the same rule
    assert int(found[0][2]) == 12
