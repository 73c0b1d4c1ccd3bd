"""An empty cache folder."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))
