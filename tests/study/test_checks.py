"""Checks of numbers."""

import pytest

from cachequant.errors import InputError
from cachequant.study.checks import at_least_one


def test_the_first_number_below_one_is_named():
    at_least_one(threads=1, repeats=2)
    with pytest.raises(InputError, match="new tokens 0 has to be at least 1"):
        at_least_one(threads=1, new_tokens=0, repeats=-1)
