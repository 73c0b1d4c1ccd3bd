"""What is generated when speed is measured: two profiles on our own texts, and prompts at fixed places of a text.

The texts were written for this study, to the token counts of the earlier one: a short prompt with a long answer, where
decoding dominates, and a long prompt with a short answer, where prefill does. Their counts are exact for SmolLM2's
tokenizer; with another one the ids are cut, or the text is repeated, to the same counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cachequant.errors import InputError

DIVERGENCE_PROMPTS, DIVERGENCE_LENGTH, DIVERGENCE_STEP = 20, 32, 509


@dataclass(frozen=True)
class Workload:
    """A prompt and how many tokens follow it.

    name : ``short`` or ``long``.
    text : the prompt.
    prompt_tokens : its length with SmolLM2's tokenizer, and the length of the ids of every model.
    new_tokens : tokens to generate; the first one comes from the prefill.
    """

    name: str
    text: str
    prompt_tokens: int
    new_tokens: int

    def ids(self, vocab: int, tokenizer=None) -> list[int]:
        """Exactly `prompt_tokens` ids of this text; seeded ids for a model without a tokenizer."""
        return prompt_ids(self.prompt_tokens, vocab, tokenizer, self.text)


SHORT = Workload("short", "Long before computers, people dreamed of thinking", 8, 50)
LONG = Workload(
    "long",
    "A calculating machine is older than electricity. In the seventeenth century Pascal built a brass box whose "
    "wheels carried tens from one column to the next, and Leibniz added a stepped drum that could multiply. Two "
    "hundred years later Babbage drew an engine with a store for numbers and a mill that worked on them, and "
    "Lovelace saw that such an engine could weave patterns in algebra as the Jacquard loom weaves flowers and "
    "leaves. Neither saw it finished. The next step came from wars and telephones: relays that clicked through "
    "sums, then valves that switched a thousand times faster and failed almost as often. A program was a tangle of "
    "cables until somebody noticed that orders are numbers too and may lie in the same memory as the data. From "
    "then on a machine could be given a new task without a screwdriver. The transistor made it small, the "
    "integrated circuit made it cheap, and every few years the same area of silicon held twice as many switches. "
    "Memory grew as well, but it did not grow quicker in the same measure: today a processor can add a hundred "
    "numbers in the time that it takes to fetch a single one. Much of the craft of writing fast programs is "
    "therefore the craft of waiting less. One keeps close what will be needed again, moves data in long runs, and "
    "makes each number only as small as its purpose allows.",
    270,
    10,
)
PROFILES = {w.name: w for w in (SHORT, LONG)}


def prompt_ids(count: int, vocab: int, tokenizer=None, text: str = LONG.text, seed: int = 0) -> list[int]:
    """`count` token ids.

    Parameters
    ----------
    count : at least 1.
    vocab : ids are below it.
    tokenizer : with one, the ids of `text`, cut or repeated to `count`; without, uniform ids from `seed`, which is
        enough for speed because speed does not depend on the values.
    """
    if count < 1:
        raise InputError(f"a prompt needs at least 1 token, got {count}")
    if tokenizer is None:
        return random_ids(count, vocab, seed)
    ids = tokenizer.encode(text)
    return [int(ids[i % len(ids)]) for i in range(count)]


def random_ids(count: int, vocab: int, seed: int = 0) -> list[int]:
    """`count` uniform ids below `vocab`, the same for the same seed."""
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def divergence_prompts(
    ids: Sequence[int],
    count: int = DIVERGENCE_PROMPTS,
    length: int = DIVERGENCE_LENGTH,
    step: int = DIVERGENCE_STEP,
) -> list[list[int]]:
    """Prompts of `length` tokens that start every `step` tokens of a tokenized text.

    Raises
    ------
    InputError : the text is too short.
    """
    needed = (count - 1) * step + length
    if len(ids) < needed:
        raise InputError(f"{count} prompts every {step} tokens need a text of {needed} tokens, this one has {len(ids)}")
    return [[int(t) for t in ids[i * step : i * step + length]] for i in range(count)]
