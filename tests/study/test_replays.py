"""Replays tell who repeats an answer, branches tell what they share."""

import pytest

from cachequant.study import replays, variants
from cachequant.study.quality_rows import agreed
from helpers import random_model

MODEL = random_model("int8", head_dim=16)
PROMPT = [i % 61 for i in range(3, 70)]


@pytest.fixture(autouse=True)
def no_page_leaks():
    yield
    assert MODEL.pool.in_use == 0


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "drawn"])
def test_a_maker_repeats_its_own_answer_and_others_do_not_have_to(tmp_path, sampling):
    names = ["int8", "int8/k2v2+exact0", "fp32"]
    found = replays.across(MODEL, names, PROMPT, 20, tmp_path, **sampling)
    assert {maker: row["first"][maker] for maker, row in found.items()} == dict.fromkeys(names)
    answers = {name: variants.get(name).of(MODEL)[0].generate(PROMPT, 20, **sampling).ids for name in names}
    for maker, row in found.items():
        same = {name: agreed(answers[name], answers[maker]) for name in names}
        assert row == {"tokens": 20, "first": {name: n if n < 20 else None for name, n in same.items()}}
    assert not any(tmp_path.iterdir())


def test_branches_share_all_full_pages():
    found = replays.branches(MODEL, PROMPT, 3, 4, temperature=1.0)
    assert found["pages"] == [[0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1, 5]]
    page = MODEL.pool.page_bytes
    assert (found["shared_bytes"], found["separate_bytes"]) == (6 * page, 12 * page)
    assert found["answers"] == ["", "", ""]  # no tokenizer, no text
