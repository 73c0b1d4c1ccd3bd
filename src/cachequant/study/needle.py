"""Finding a fact in a long context: numbers hidden in a text at several depths, asked for at its end.

The text is prefilled once; every question is asked on a branch of its own, so what one answer leaves in the cache is
not there for the next. A small model may fail in float32 as well: its own accuracy stands beside every format's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cachequant.errors import InputError

PLACES = ("Amsterdam", "Cairo", "Lima", "Oslo", "Vienna", "Nairobi", "Kyoto", "Toronto")
SENTENCE = " The secret number of {place} is {number}."
QUESTION = "\nThe secret number of {place} is"
SEED = 7


@dataclass(frozen=True)
class Needle:
    """A hidden number: its place, its depth from 0 to 1, token ids of the question and of the answer."""

    place: str
    depth: float
    question: list[int]
    answer: list[int]


def haystack(tokenizer, ids: Sequence[int], tokens: int, count: int = 8) -> tuple[list[int], list[Needle]]:
    """A text of exactly `tokens` tokens with `count` numbers hidden in it, at even depths.

    Parameters
    ----------
    tokenizer : encodes the sentences.
    ids : token ids of the text around them.
    tokens : of the whole.
    count : needles, at most as many as there are `PLACES`.

    Raises
    ------
    InputError : too many needles, a text too short for the length, a length too short for the needles.
    """
    if not 1 <= count <= len(PLACES):
        raise InputError(f"{count} needles: give 1 to {len(PLACES)}")
    rng, hidden, needles = np.random.default_rng(SEED), [], []
    for i, place in enumerate(PLACES[:count]):
        number = int(rng.integers(10000, 100000))
        stem = SENTENCE.split(" {number}")[0].format(place=place)
        whole = tokenizer.encode(SENTENCE.format(place=place, number=number))
        answer = whole[len(tokenizer.encode(stem)) : -1]
        hidden.append(whole)
        needles.append(Needle(place, (i + 0.5) / count, tokenizer.encode(QUESTION.format(place=place)), answer))
    room = tokens - sum(map(len, hidden))
    if room < count or len(ids) < room:
        raise InputError(f"{tokens} tokens with {count} needles need 0 < {room} <= {len(ids)} tokens of text")
    made, at = [], 0
    for needle, sentence in zip(needles, hidden, strict=True):
        cut = round(needle.depth * room)
        made += [*ids[at:cut], *sentence]
        at = cut
    return [int(t) for t in (*made, *ids[at:room])], needles


def ask(model, ids: list[int], needles: Sequence[Needle]) -> list[dict]:
    """The answers of a model after a text.

    Returns
    -------
    One row a needle: {"place", "depth", "log_probability" (of the right answer, nats a token), "found" (whether the
    most likely token was right at each place of the answer)}.
    """
    rows = []
    with model.session() as session:
        session.extend(ids, logits="none")
        for needle in needles:
            with session.fork() as branch:
                logits = branch.extend([*needle.question, *needle.answer[:-1]], logits="all")
            logits = logits[-len(needle.answer) :].astype(np.float64)
            top = logits.max(1, keepdims=True)
            loss = np.log(np.exp(logits - top).sum(1)) + top[:, 0] - logits[range(len(logits)), needle.answer]
            found = bool((logits.argmax(1) == needle.answer).all())
            rows.append({
                "place": needle.place, "depth": needle.depth, "log_probability": -float(loss.mean()), "found": found,
            })  # fmt: skip
    return rows
