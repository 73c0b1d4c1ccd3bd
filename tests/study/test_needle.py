"""Needles are where they are said to be, and answers are scored on branches of one prefill."""

import numpy as np
import pytest

import helpers
from cachequant.errors import InputError
from cachequant.study import needle


class Letters:
    """A tokenizer: one id a character."""

    sha256 = "letters"

    def encode(self, text):
        return [ord(c) % 61 for c in text]


def test_a_haystack_has_the_length_and_the_needles():
    text = [60] * 900
    ids, needles = needle.haystack(Letters(), text, 600, count=4)
    assert len(ids) == 600 and [n.depth for n in needles] == [0.125, 0.375, 0.625, 0.875]
    for n in needles:
        assert len(n.answer) == 6  # a blank and five digits
        whole = Letters().encode(f" The secret number of {n.place} is") + n.answer
        at = next(i for i in range(600) if ids[i : i + len(whole)] == whole)
        assert abs(at / 600 - n.depth) < 0.1
    assert needle.haystack(Letters(), text, 600, 4)[1] == needles


@pytest.mark.parametrize(
    ("tokens", "count", "message"), [(600, 0, "0 needles"), (100, 8, "100 tokens"), (2000, 2, "2000 tokens")]
)
def test_haystacks_that_cannot_be_made(tokens, count, message):
    with pytest.raises(InputError, match=message):
        needle.haystack(Letters(), [60] * 900, tokens, count)


@pytest.mark.parametrize("kv", ["fp32", "k2v2"])
def test_answers_do_not_see_each_other(kv):
    model = helpers.random_model(width=32, heads=2, kv_heads=1, head_dim=16, context=400).with_kv(kv, "none")
    ids, needles = needle.haystack(Letters(), [7] * 400, 250, count=3)
    rows = needle.ask(model, ids, needles)
    assert [r["place"] for r in rows] == [n.place for n in needles]
    last = needles[-1]
    with model.session() as session:
        logits = session.extend([*ids, *last.question, *last.answer[:-1]], "all")[-len(last.answer) :]
    logits = logits.astype(np.float64)
    log_p = (
        logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)) - logits.max(1)[:, None]
    )
    assert rows[-1]["log_probability"] == pytest.approx(np.mean([log_p[i, t] for i, t in enumerate(last.answer)]))
    assert rows[-1]["found"] == bool((logits.argmax(1) == last.answer).all())


def test_a_right_answer_is_found():
    model = helpers.random_model(context=400)
    ids, needles = needle.haystack(Letters(), [7] * 400, 250, count=1)
    with model.session() as session:
        answer = [int(session.extend([*ids, *needles[0].question]).argmax())]
        answer.append(int(session.extend(answer).argmax()))
    (row,) = needle.ask(model, ids, [needle.Needle("x", 0.5, needles[0].question, answer)])
    assert row["found"]
