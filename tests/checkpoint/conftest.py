"""An empty cache folder, and tiny models to quantize."""

import pytest

from cachequant.assets import models
from helpers import checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Folder of a tiny transformers checkpoint by name."""
    root = tmp_path_factory.mktemp("saved")
    return lambda name: checkpoint(name, str(root))


@pytest.fixture
def asset(saved):
    """A tiny float32 model by name."""
    return lambda name: models.resolve(saved(name))
