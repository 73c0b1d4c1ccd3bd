"""An empty cache folder, and tiny models to quantize."""

import pytest

from cachequant.assets import models


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def asset(saved):
    """A tiny float32 model by name."""
    return lambda name: models.resolve(saved(name))
