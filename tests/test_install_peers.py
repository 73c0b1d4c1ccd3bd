"""The installer of other people's engines: its progress and its last words, with a fake build."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("install_peers", ROOT / "tools" / "peers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_progress_is_shown_every_tenth(tool, capfd):
    build = "import os; print(os.environ['CMAKE_ARGS']); [print(f'  [{i}/20] compiling') for i in range(1, 21)]"
    assert tool.install([sys.executable, "-c", build]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "compiling llama.cpp: 20 of 20"


def test_a_failed_build_shows_its_end_and_keeps_the_log(tool, capfd):
    assert tool.install([sys.executable, "-c", "print('no compiler'); raise SystemExit(3)"]) == 3
    said = capfd.readouterr().err
    assert "no compiler" in said and "not installed" in said
    log = Path(re.search(r"in (\S+)$", said).group(1))
    assert "no compiler" in log.read_text()
    log.unlink()


def test_every_engine_is_pinned_exactly():
    from cachequant.study.hf_cache_arms import BACKENDS
    from cachequant.study.peers import MODULES

    lines = [line for line in (ROOT / "requirements-peers.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\d.]+(post\d+)?", line) for line in lines)
    needed = {*MODULES.values(), *(package for _, _, package, _ in BACKENDS.values())}
    assert needed <= {line.partition("==")[0] for line in lines}
