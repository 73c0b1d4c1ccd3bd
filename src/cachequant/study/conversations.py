"""What prefix reuse is measured on: sets of prompts that share their beginning or do not, and conversations.

Our own texts, to the token counts of the earlier study. A prompt is made of pieces that are tokenized one by one, as a
conversation grows; with SmolLM2's tokenizer every piece has its count and a prompt has the ids of its whole text. With
another tokenizer the ids of a piece are cut or repeated to its count, without one they are drawn from a seed that its
text gives: what is shared stays shared.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cachequant.conversation import Conversation, Plain, drift
from cachequant.errors import InputError
from cachequant.study.checks import at_least_one
from cachequant.study.workloads import LONG, prompt_ids

if TYPE_CHECKING:
    from cachequant.decoder.model import Model


@dataclass(frozen=True)
class Piece:
    """A text, and how many tokens it gives.

    text : what is said.
    tokens : its length with SmolLM2's tokenizer, and the length of its ids for every model.
    """

    text: str
    tokens: int

    def ids(self, vocab: int, tokenizer=None) -> list[int]:
        """Exactly `tokens` ids."""
        return prompt_ids(self.tokens, vocab, tokenizer, self.text, zlib.crc32(self.text.encode()))


@dataclass(frozen=True)
class Turn:
    """One request.

    prompt : token ids.
    answer : those that follow it and belong to the next turn's prompt; may be empty.
    """

    prompt: list[int]
    answer: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class PromptSet:
    """Independent requests, one after the other.

    name : of the set.
    prompts : the pieces of each prompt.
    """

    name: str
    prompts: tuple[tuple[Piece, ...], ...]

    @property
    def tokens(self) -> list[int]:
        """Length of each prompt."""
        return [sum(piece.tokens for piece in prompt) for prompt in self.prompts]

    def longest(self, new: int = 0) -> int:
        """Most tokens that a session needs, with `new` generated ones a turn."""
        return max(self.tokens) + new

    def conversations(self, model: "Model", new: int = 0) -> list[list[Turn]]:
        """One conversation of unrelated turns, each with `new` generated tokens."""
        vocab, tokenizer = model.config.vocab, model.tokenizer
        found = []
        for pieces in self.prompts:
            prompt = [i for piece in pieces for i in piece.ids(vocab, tokenizer)]
            with model.session() as session:
                found.append(Turn(prompt, reply(model, session, prompt, new)))
        return [found]


@dataclass(frozen=True)
class DialogueSet:
    """Conversations in which every prompt is the one before, its answer, and a new turn.

    name : of the set.
    dialogues : {name: what is said in each turn}; the first turn holds the system text as well.
    """

    name: str
    dialogues: dict[str, tuple[Piece, ...]]

    def part(self, names: Sequence[str], turns: int) -> "DialogueSet":
        """Some of the dialogues, and their first turns only. Raises InputError for others, or no turns."""
        unknown = [name for name in names if name not in self.dialogues]
        if unknown or not names:
            raise InputError(f"dialogues {list(names)}; allowed are some of {', '.join(self.dialogues)}")
        at_least_one(turns=turns)
        return DialogueSet(self.name, {name: self.dialogues[name][:turns] for name in names})

    def longest(self, new: int = 12) -> int:
        """Most tokens that a session needs, with `new` generated ones a turn."""
        return max(sum(piece.tokens + new for piece in turns) for turns in self.dialogues.values())

    def conversations(self, model: "Model", new: int = 12) -> list[list[Turn]]:
        """Every dialogue, answered greedily without a cache, `new` tokens a turn."""
        vocab, tokenizer = model.config.vocab, model.tokenizer
        found = []
        for turns in self.dialogues.values():
            talk, made = Conversation(), []
            with model.session() as session:
                for piece in turns:
                    said = piece.ids(vocab, tokenizer)
                    prompt = talk.ask(said)
                    made.append(Turn(prompt, reply(model, session, said, new)))
                    talk.answer(made[-1].answer)
            found.append(made)
        return found


def reply(model: "Model", session, prompt: Sequence[int], new: int) -> list[int]:
    """Append a prompt and `new` greedy tokens to a session; tokens that end a text are passed over, so that every
    model gives as many."""
    if new < 1:
        return []
    logits, made = session.extend(prompt), []
    while True:
        allowed = logits.copy()
        allowed[list(model.config.eos_ids)] = -np.inf
        made.append(int(allowed.argmax()))
        if len(made) == new:
            session.append(made[-1:])
            return made
        logits = session.extend(made[-1:])


def retokenized(model: "Model", conversations: Sequence[Sequence[Turn]]) -> dict[str, int]:
    """{turns, differing}: in how many prompts tokenizing the text anew would give other ids."""
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer: its ids have no text")
    prompts = [turn.prompt for turns in conversations for turn in turns]
    return {"turns": len(prompts), "differing": sum(drift(model.tokenizer, p) is not None for p in prompts)}


def _set(name: str, shared: Sequence[Piece], *rest: Sequence[Piece]) -> PromptSet:
    return PromptSet(name, tuple((*shared, *pieces) for pieces in rest))


def _dialogue(system: str, tokens: Sequence[int], *turns: str) -> tuple[Piece, ...]:
    form = Plain()
    texts = [form.first(system, turns[0]), *(form.following(turn) for turn in turns[1:])]
    return tuple(Piece(text, count) for text, count in zip(texts, tokens, strict=True))


_WHAT = Piece(" What is the", 3)
SETS: dict[str, PromptSet | DialogueSet] = {
    s.name: s
    for s in (
        _set(
            "high_reuse",
            [Piece("You are a very patient teacher. Answer in one short sentence.\nQuestion:", 16)],
            [_WHAT, Piece(" longest river known?", 4)],
            [_WHAT, Piece(" speed of sound in dry air?", 7)],
            [Piece(" How many legs has a spider?", 7)],
            [_WHAT, Piece(" difference between rain and fine hail?", 7)],
            [Piece(" Why do leaves turn red in autumn?", 8)],
        ),
        _set(
            "long_high_reuse",
            [Piece(LONG.text, LONG.prompt_tokens), Piece(" Using only this text,", 5)],
            [Piece(" say", 1), Piece(" who built the first box.", 6)],
            [Piece(" name", 1), Piece(" the inventor of the drum.", 6)],
            [Piece(" explain", 1), Piece(" what changed with the first transistor.", 7)],
            [Piece(" name", 1), Piece(" two reasons why memory is the slower.", 8)],
            [Piece(" say", 1), Piece(" in one sentence what a very good programmer does.", 10)],
        ),
        _set(
            "no_reuse",
            [],
            [Piece("A gallery of old maps opened in", 7)],
            [Piece("The", 1), Piece(" baker had sold his very last loaf before dawn", 9)],
            [Piece("Rain fell on the harbour all night long", 8)],
            [Piece("Every winter the choir sings in three old", 8)],
            [Piece("The", 1), Piece(" lighthouse keeper wrote a rather short letter home", 8)],
        ),
        DialogueSet(
            "multi_turn",
            {
                "france": _dialogue(
                    "You are a friendly guide to the small old towns of France.",
                    (25, 12, 16, 14, 13, 13, 16, 15),
                    "Where shall we begin?",
                    "What do people eat?",
                    "And how do we go there by train?",
                    "How long should we stay there?",
                    "Is it warm in spring?",
                    "Which museum is worth it?",
                    "Can you name a village near the coast?",
                    "What should we bring home with us?",
                ),
                "python": _dialogue(
                    "You help people to write small programs in plain Python.",
                    (26, 11, 13, 13, 14, 15, 16, 15),
                    "How do I read a text file?",
                    "And if empty?",
                    "How do I count lines?",
                    "Can I skip the comments?",
                    "How do I sort the words?",
                    "What does a list comprehension look like?",
                    "How would I test such a function properly?",
                    "Where do I put the error message?",
                ),
                "history": _dialogue(
                    LONG.text,
                    (297, 15, 18, 13, 15, 14, 16, 17),
                    "Summarize the text in one sentence, without any of the names that occur in it, please.",
                    "Which of all the machines came first?",
                    "Why did nobody finish the engine of Babbage himself?",
                    "What could it really do?",
                    "How did the relays differ from valves?",
                    "What did the first transistor change?",
                    "Why is it important to wait less today?",
                    "What would you still add to the text today?",
                ),
            },
        ),
    )
}


def get(name: str | PromptSet | DialogueSet) -> PromptSet | DialogueSet:
    """A set by name; a set as it is. Raises InputError naming those there are."""
    if isinstance(name, PromptSet | DialogueSet):
        return name
    if name not in SETS:
        raise InputError(f"unknown set {name!r}; allowed: {', '.join(SETS)}")
    return SETS[name]
