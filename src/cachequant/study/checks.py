"""Checks of numbers that many measurements take."""

from cachequant.errors import InputError


def at_least_one(**values: int) -> None:
    """Raise InputError naming the first of these numbers that is below 1; underscores are shown as spaces."""
    for name, value in values.items():
        if value < 1:
            raise InputError(f"{name.replace('_', ' ')} {value!r} has to be at least 1")
