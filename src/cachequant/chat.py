"""A chat with a model over one session and its branches: turns in the model's own template, replies as they come."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachequant.conversation import Format, Plain, Template
from cachequant.errors import InputError
from cachequant.kv.checks import require_stable
from cachequant.kv.session import Session

if TYPE_CHECKING:
    from cachequant.decoder.generation import Generation
    from cachequant.decoder.model import Model

MARK = "\ue001"  # stands for what a user says; a private character


@dataclass(frozen=True)
class Stats:
    """A chat at this moment.

    branch, branches : number of the branch that is talked to, from 1, and how many there are.
    turns, tokens : of this branch, its system prompt and templates counted.
    pages, shared : that it holds, and those of them that other branches hold as well.
    nbytes : of all branches together, shared pages once.
    prefill_tok_s, decode_tok_s : of the last reply; None before the first one, or where nothing was computed.
    """

    branch: int
    branches: int
    turns: int
    tokens: int
    pages: int
    shared: int
    nbytes: int
    prefill_tok_s: float | None
    decode_tok_s: float | None


class Chat:
    """Turns and replies over branches of a session.

    Parameters
    ----------
    model : with a tokenizer. Turns are written in its chat template, or as ``User:`` and ``Assistant:`` lines.
    session : to go on with; None starts a new one.
    system : said before the first turn of a new session.
    max_new_tokens, **sampling : of every reply, as for `Model.generate`.

    Raises
    ------
    InputError : no tokenizer, a template that cannot be used, a scheme whose sessions cannot be cut, bad sampling.
    """

    def __init__(
        self,
        model: "Model",
        session: Session | None = None,
        system: str = "",
        max_new_tokens: int | None = None,
        **sampling,
    ):
        if model.tokenizer is None:
            raise InputError(f"{model.name} has no tokenizer and cannot chat")
        require_stable(model.scheme, "a chat")
        self._model, self._system, self._limit, self._sampling = model, system, max_new_tokens, sampling
        self._format, self._end = form(model)
        opening, _, closing = self._format.following(MARK).partition(MARK)
        self._opening, self._closing = (model.tokenizer.encode(part.rstrip(" ")) for part in (opening, closing))
        self._branches = [session or model.session()]
        self._current = 0
        self._last: Generation | None = None

    @property
    def session(self) -> Session:
        """Of the branch that is talked to."""
        return self._branches[self._current]

    def reply(self, text: str, stopped: Callable[[], bool] = lambda: False) -> Iterator[str]:
        """Say something; yields the reply in pieces without a part of a character.

        Parameters
        ----------
        text : what the user says.
        stopped : asked after every token; the reply ends where it says so, and stays as it is.

        Raises
        ------
        InputError : an empty text, or more tokens than the context has room for; before any compute.
        """
        if not text.strip():
            raise InputError("the turn is empty")
        session = self.session
        said = self._format.following(text) if session.ids else self._format.first(self._system, text)
        made, drawn = session.start(said, self._limit, **self._sampling)
        return self._model.tokenizer.pieces(self._until_end(session, made, drawn, stopped))

    def _until_end(
        self, session: Session, made: "Generation", drawn: Iterator[int], stopped: Callable[[], bool]
    ) -> Iterator[int]:
        try:
            for token in drawn:
                if token == self._end:
                    drawn.close()
                    session.rewind(session.position - 1)
                    return
                yield token
                if stopped():
                    return
        finally:
            drawn.close()
            self._last = made

    def fork(self) -> int:
        """Go on in a new branch, which shares all pages so far; gives its number."""
        self._branches.append(self.session.fork())
        self._current = len(self._branches) - 1
        return len(self._branches)

    def switch(self, branch: int) -> None:
        """Go on in another branch. Raises InputError if there is none of this number."""
        if not 1 <= branch <= len(self._branches):
            raise InputError(f"there is no branch {branch}: allowed are 1 to {len(self._branches)}")
        self._current = branch - 1

    def rewind(self, turns: int = 1) -> None:
        """Forget the last turns and their replies.

        Raises
        ------
        InputError : not a number of turns from 1 to those there are.
        """
        starts = self.starts
        if not 1 <= turns <= len(starts):
            raise InputError(f"rewind by {turns} turns: allowed are 1 to {len(starts)}")
        self.session.rewind(starts[-turns])

    @property
    def starts(self) -> list[int]:
        """Where in the ids each turn begins: at the beginning, and wherever one is opened after a reply."""
        ids, found, at = self.session.ids, [0], 0
        while (at := _find(ids, self._closing, at)) is not None:
            if (at := _find(ids, self._opening, at + len(self._closing))) is None:
                break
            found.append(at)
        return found if ids else []

    @property
    def stats(self) -> Stats:
        """What the branches hold, and how fast the last reply was."""
        pool, session, last = self._model.pool, self.session, self._last
        held = {page for branch in self._branches for page in branch.pages}
        others = {page for branch in self._branches if branch is not session for page in branch.pages}
        decode = sum(last.token_seconds) if last else 0.0
        return Stats(
            branch=self._current + 1,
            branches=len(self._branches),
            turns=len(self.starts),
            tokens=session.position,
            pages=len(session.pages),
            shared=len(others.intersection(session.pages)),
            nbytes=sum(pool.size(page) for page in held),
            prefill_tok_s=last.prompt_tokens / last.prefill_seconds if last and last.prefill_seconds else None,
            decode_tok_s=len(last.token_seconds) / decode if decode else None,
        )

    def close(self) -> None:
        """Give all pages back."""
        for branch in self._branches:
            branch.close()

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def form(model: "Model") -> tuple[Format, int | None]:
    """How a model's turns are written, and the token that ends one where that is not an end of text."""
    if not model.chat_template:
        return Plain(), None
    names = {"eos_token": next(iter(model.config.eos_ids), None), "bos_token": model.config.bos_id}
    special = {name: model.tokenizer.token(token) or "" for name, token in names.items() if token is not None}
    template = Template(model.chat_template, **special)
    return template, template.end_of_turn(model.tokenizer)


def _find(ids: list[int], part: list[int], start: int) -> int | None:
    """The first place from `start` on where `part` stands."""
    places = range(start, len(ids) - len(part) + 1)
    return next((i for i in places if ids[i : i + len(part)] == part), None)
