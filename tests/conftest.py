"""The cache folder of the test run, and a fixed random generator a test."""

import os

import numpy as np
import pytest

import cache_of_tests

_CACHE = cache_of_tests.make()
os.environ["CACHEQUANT_CACHE"] = _CACHE.name  # before any module reads it, and for child processes


def pytest_unconfigure():
    _CACHE.cleanup()


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Folder of a tiny transformers checkpoint by name."""
    from helpers import checkpoint

    root = tmp_path_factory.mktemp("saved")
    return lambda name: checkpoint(name, str(root))


@pytest.fixture
def rng():
    return np.random.default_rng(2026)
