from types import SimpleNamespace

import pytest

from cachequant.assets import __main__ as command
from cachequant.errors import AssetError


@pytest.fixture
def ready(cache, monkeypatch):
    """Assets that are there already."""

    def model(name, say, progress):
        say("converting")
        progress(1, 2)
        return SimpleNamespace(sha256="0" * 64)

    monkeypatch.setattr(command.models, "resolve", model)
    monkeypatch.setattr(command.store, "verify", lambda sha256: None)
    monkeypatch.setattr(command.texts, "resolve", lambda name, say: say(f"fetching {name}"))
    return cache


def test_steps_and_the_folder_are_told(ready, capsys):
    assert command.main() == 0
    out = capsys.readouterr().out
    assert out.startswith("  converting\n  fetching enwiki\nassets ready in ") and str(ready) in out


def test_failures_are_one_line_and_exit_code_2(ready, capsys, monkeypatch):
    def fail(name, say):
        raise AssetError("no network")

    monkeypatch.setattr(command.texts, "resolve", fail)
    assert command.main() == 2
    assert capsys.readouterr().err == "error: no network\n"
