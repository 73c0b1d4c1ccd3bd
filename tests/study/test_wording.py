"""Words follow the interval, not the median alone."""

import pytest

from cachequant.study import wording


def cell(low, high):
    return {"median": (low + high) / 2, "low": low, "high": high}


@pytest.mark.parametrize(
    "low,high,words",
    [
        *[(1.1, 1.3, "faster than"), (0.7, 0.9, "slower than"), (0.95, 1.2, "within the noise of")],
        *[(1.004, 1.2, "within the noise of"), (0.9, 0.996, "within the noise of"), (0.9, 0.994, "slower than")],
    ],
)
def test_verdict(low, high, words):
    assert wording.verdict(cell(low, high)) == words


def test_times_shows_the_interval():
    assert wording.times(cell(1.7, 1.9)) == "1.80 [1.70, 1.90] times"


@pytest.mark.parametrize("names,text", [([], "none"), (["a"], "a"), (["a", "b"], "a and b"), ("abc", "a, b and c")])
def test_listed(names, text):
    assert wording.listed(names) == text


def test_best_names_all_that_cannot_be_told_apart():
    cells = {"slow": cell(1, 2), "int8": cell(8, 10), "bfp8": cell(7, 8.5)}
    assert wording.best(cells) == "int8 (within its noise: bfp8)"
    assert wording.best({"slow": cells["slow"], "int8": cells["int8"]}) == "int8"
    paired = {"slow": cell(0.9, 8), "bfp8": cell(1.1, 1.2)}
    assert wording.best(cells, lambda a, b: paired[b]) == "int8 (within its noise: slow)"


def test_wins_by_prompt_length():
    win, lose, tie = cell(1.2, 1.4), cell(0.5, 0.6), cell(0.9, 1.1)
    assert wording.wins({8: win, 512: win}) == "at every length"
    assert wording.wins({512: win, 8: win, 32: lose, 128: tie}) == "at 8 and 512 tokens"
    assert wording.wins({8: lose}) == "at none"
