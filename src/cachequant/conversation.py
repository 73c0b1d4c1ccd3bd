"""Conversations as token ids: a turn appends the generated ids as they are, and then the tokenized new text.

Tokenizing a transcript anew need not give the ids that the model generated: "a" + "b" may be one token where the model
wrote two. A cache of keys and values knows ids, so the ids are the truth and the transcript is only what is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jinja2
import jinja2.sandbox

from cachequant.decoder.tokenizer import Tokenizer
from cachequant.errors import InputError

REPLY = "\ue000reply\ue000"  # stands for a reply where a template is rendered: private characters, in nobody's text


class Format(Protocol):
    """How turns are written."""

    def first(self, system: str, text: str) -> str:
        """Everything up to the place of the first reply."""

    def following(self, text: str) -> str:
        """What stands between the end of a reply and the place of the next one."""


@dataclass(frozen=True)
class Plain:
    """``User:`` and ``Assistant:`` lines, for models without a template of their own."""

    def first(self, system: str, text: str) -> str:
        return system + self.following(text)

    def following(self, text: str) -> str:
        return f"\nUser: {text}\nAssistant:"


class Template:
    """A model's own chat template.

    Parameters
    ----------
    source : Jinja2 template over `messages` and `add_generation_prompt`, as in `tokenizer_config.json`; it runs in a
        sandbox.
    special : tokens by name that the template may use, such as ``bos_token``.

    Raises
    ------
    InputError : it is no template, or leaves out what a reply says.
    """

    def __init__(self, source: str, **special: str):
        self._special = special
        try:
            environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = _refuse
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InputError(f"the model's chat template cannot be used: {error}") from error
        self.after_reply = self.following("x")

    def first(self, system: str, text: str) -> str:
        messages = [{"role": "system", "content": system}] if system else []
        return self._render([*messages, {"role": "user", "content": text}])

    def following(self, text: str) -> str:
        said = [("user", "x"), ("assistant", REPLY), ("user", text)]
        _, found, after = self._render([{"role": role, "content": content} for role, content in said]).rpartition(REPLY)
        if not found:
            raise InputError("the model's chat template leaves out what a reply says")
        return after

    def end_of_turn(self, tokenizer: Tokenizer) -> int | None:
        """The special token that stands behind every reply; None if the template has none."""
        first = tokenizer.encode(self.after_reply)[0]
        return first if tokenizer.decode([first]) == "" else None

    def _render(self, messages: list[dict[str, str]]) -> str:
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise InputError(f"the model's chat template refuses the messages: {error}") from error


def _refuse(message: str):
    raise jinja2.TemplateError(message)


class Conversation:
    """Turns of a user and replies of a model, as one growing list of token ids.

    Parameters
    ----------
    tokenizer : of the model; None where turns are given as ids.
    system : what stands before the first turn.
    format : how turns are written.

    Attributes
    ----------
    ids : everything that was said so far.

    Examples
    --------
    >>> talk = Conversation(model.tokenizer, "Answer briefly.")  # doctest: +SKIP
    >>> talk.answer(model.generate(talk.ask("Why is the sky blue?"), 12).ids)  # doctest: +SKIP
    """

    def __init__(self, tokenizer: Tokenizer | None = None, system: str = "", format: Format | None = None):
        self._tokenizer, self._system, self._format = tokenizer, system, format or Plain()
        self.ids: list[int] = []
        self._asked = False

    def ask(self, turn: str | Sequence[int]) -> list[int]:
        """Append a turn; gives the prompt of its reply, which is everything so far.

        Raises
        ------
        InputError : the turn before has no reply yet, an empty turn, or a text without a tokenizer.
        """
        if self._asked:
            raise InputError("the turn before has no reply yet: give it to answer() first")
        if isinstance(turn, str):
            if self._tokenizer is None:
                raise InputError("a conversation without a tokenizer needs token ids instead of text")
            turn = self._tokenizer.encode(
                self._format.following(turn) if self.ids else self._format.first(self._system, turn)
            )
        if not len(turn):
            raise InputError("the turn is empty: expected a text, or at least one token id")
        self.ids.extend(int(i) for i in turn)
        self._asked = True
        return self.ids.copy()

    def answer(self, ids: Sequence[int]) -> None:
        """Append a reply as it was generated. Raises InputError if nothing was asked."""
        if not self._asked:
            raise InputError("nothing was asked: call ask() first")
        self.ids.extend(int(i) for i in ids)
        self._asked = False

    @property
    def transcript(self) -> str:
        """The text of everything so far, special tokens included."""
        if self._tokenizer is None:
            raise InputError("a conversation without a tokenizer has no transcript")
        return self._tokenizer.decode(self.ids, skip_special=False)

    @property
    def drift(self) -> int | None:
        """The first place where tokenizing the transcript gives other ids; None if it gives the same."""
        if self._tokenizer is None:
            raise InputError("a conversation without a tokenizer has no transcript")
        return drift(self._tokenizer, self.ids)


def drift(tokenizer: Tokenizer, ids: Sequence[int]) -> int | None:
    """The first place where tokenizing the text of `ids` gives others; None if it gives the same."""
    again = tokenizer.encode(tokenizer.decode(ids, skip_special=False))
    differs = (a != b for a, b in zip(again, ids, strict=False))
    end = None if len(again) == len(ids) else min(len(again), len(ids))
    return next((i for i, d in enumerate(differs) if d), end)


def prompts(
    tokenizer: Tokenizer | None,
    system: str,
    turns: Sequence[str | Sequence[int]],
    replies: Sequence[Sequence[int]],
    format: Format | None = None,
) -> list[list[int]]:
    """The prompts of all turns of a conversation whose replies are known; that of the last turn may be missing.

    Raises
    ------
    InputError : a number of replies that is neither that of the turns nor one less.
    """
    if len(turns) - len(replies) not in (0, 1):
        raise InputError(f"{len(replies)} replies for {len(turns)} turns: expected {len(turns) - 1} or {len(turns)}")
    talk, found = Conversation(tokenizer, system, format), []
    for i, turn in enumerate(turns):
        found.append(talk.ask(turn))
        if i < len(replies):
            talk.answer(replies[i])
    return found
