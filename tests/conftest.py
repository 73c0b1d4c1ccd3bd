"""Shared fixtures: a fixed random generator a test."""

import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(2026)
