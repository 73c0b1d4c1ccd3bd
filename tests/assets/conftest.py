"""An empty cache folder for a test."""

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("CACHEQUANT_CACHE", str(folder))
    monkeypatch.delenv("CACHEQUANT_WIKITEXT", raising=False)
    return folder
