"""The generation loop: prompt, then one token at a time, over any session."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cachequant.decoder.sampling import Sampler
from cachequant.errors import InputError

if TYPE_CHECKING:
    from cachequant.decoder.model import Model
    from cachequant.kv.prefix import Request
    from cachequant.kv.session import Session

END_OF_TEXT, TOKEN_LIMIT, CONTEXT_LIMIT = "end_of_text", "token_limit", "context_limit"


@dataclass
class Generation:
    """What one call generated.

    ids : the new token ids, an end-of-text token not included.
    text : the new text (empty for a model without a tokenizer).
    stop_reason : ``end_of_text``, ``token_limit`` or ``context_limit``.
    prompt_tokens : length of the prompt.
    prefill_seconds : forward pass of the prompt, to its last logits.
    token_seconds : forward pass of each further token; the first new token comes from the prefill.
    cache : what a prefix cache did for the prompt; None without one.
    """

    prompt_tokens: int
    ids: list[int] = field(default_factory=list)
    text: str = ""
    stop_reason: str = ""
    prefill_seconds: float = 0.0
    token_seconds: list[float] = field(default_factory=list)
    cache: "Request | None" = None


def check(prompt: int, max_new_tokens: int | None, context: int, stored: int, **sampling) -> Sampler:
    """The sampler, after every check that needs no compute.

    Parameters
    ----------
    prompt, stored : tokens of the prompt, and of the session before it.

    Raises
    ------
    InputError : unknown or bad arguments, or tokens that do not fit the context.
    """
    unknown = set(sampling) - {"temperature", "top_k", "top_p", "seed"}
    if unknown:
        raise InputError(f"unknown argument {sorted(unknown)[0]!r}; allowed: temperature, top_k, top_p, seed")
    sampler = Sampler(**sampling)
    after = f" after {stored} in the session" if stored else ""
    if stored + prompt > context:
        raise InputError(f"the prompt has {prompt} tokens{after}; the context holds {context}")
    if max_new_tokens is not None:
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
            raise InputError(f"max_new_tokens {max_new_tokens!r} has to be a whole number >= 1, or None")
        room = context - stored - prompt
        if max_new_tokens > room:
            raise InputError(
                f"a prompt of {prompt}{after} and max_new_tokens={max_new_tokens} do not fit the context of {context}; "
                f"at most {room} new tokens do, None runs to the limit"
            )
    return sampler


def steps(
    model: "Model", session: "Session", generation: Generation, ids: Sequence[int], limit: int | None, sampler: Sampler
) -> Iterator[int]:
    """Yields new ids as they are chosen and fills `generation`.

    Whenever it ends or is closed, the session's ids are what it had, the prompt and every id that was yielded.
    """
    start, room = session.position, model.config.context - session.position - len(ids)
    generator, new = sampler.generator(), generation.ids
    try:
        while True:
            if len(new) == (room if limit is None else limit):
                generation.stop_reason = CONTEXT_LIMIT if limit is None else TOKEN_LIMIT
                break
            clock = time.perf_counter()
            logits = session.extend(new[-1:] or ids)
            seconds = time.perf_counter() - clock
            if new:
                generation.token_seconds.append(seconds)
            else:
                generation.prefill_seconds = seconds
            token = sampler.choose(logits, generator)
            if token in model.config.eos_ids:
                generation.stop_reason = END_OF_TEXT
                break
            new.append(token)
            yield token
        if not room:
            session.append(ids)  # a prompt that fills the context: nothing needs its logits
    finally:
        if new and session.position == start + len(ids) + len(new) - 1:
            session.append(new[-1:])
        if model.tokenizer:
            generation.text = model.tokenizer.decode(new)
