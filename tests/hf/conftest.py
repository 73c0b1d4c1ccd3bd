"""An empty cache folder, and tiny transformers models in folders."""

import pytest

from helpers import checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Folder of a tiny transformers checkpoint by name."""
    root = tmp_path_factory.mktemp("saved")
    return lambda name: checkpoint(name, str(root))
