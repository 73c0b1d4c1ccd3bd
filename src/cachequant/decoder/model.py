"""A model to generate with: decoder, tokenizer and page pool behind one object."""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cachequant import kernels, schemes
from cachequant.assets import models
from cachequant.decoder.calibration import build
from cachequant.decoder.forward import Decoder
from cachequant.decoder.sampling import Sampler
from cachequant.errors import InputError
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session, check_ids
from cachequant.schemes import Scheme

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
    """

    prompt_tokens: int
    ids: list[int] = field(default_factory=list)
    text: str = ""
    stop_reason: str = ""
    prefill_seconds: float = 0.0
    token_seconds: list[float] = field(default_factory=list)


class Model:
    """Decoder, tokenizer and pages of one model under one scheme; made by `load`."""

    def __init__(self, asset: models.ModelAsset, decoder: Decoder):
        self._asset, self._decoder = asset, decoder
        self.name, self.config, self.tokenizer = asset.name, asset.config, asset.tokenizer
        self.scheme, self.random, self.sha256 = decoder.scheme, asset.random, asset.sha256
        c = asset.config
        self.pool = PagePool(c.layers, c.kv_heads, c.head_dim)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices that a decoded token reads."""
        return self._decoder.nbytes

    @property
    def fingerprint(self) -> str:
        """sha256 that binds K/V to weights, scheme, page format and tokenizer."""
        tokenizer = self.tokenizer.sha256 if self.tokenizer else ""
        parts = (self.sha256, repr(self.scheme), self.pool.format, tokenizer)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def with_scheme(self, scheme: str | Scheme, head: str | None = None) -> "Model":
        """The same model under another scheme; parts that do not change are shared, not copied."""
        scheme = schemes.get(scheme, head)
        return Model(self._asset, build(self._asset, scheme, self._decoder))

    def session(self) -> Session:
        """A new, empty session."""
        return Session(self._decoder, self.pool)

    def head(self, hidden: np.ndarray) -> np.ndarray:
        """(T, width) final hidden states -> (T, V) float32 logits."""
        return self._decoder.logits(hidden)

    def encode(self, prompt: str | list[int] | np.ndarray) -> list[int]:
        """Token ids of a prompt, checked. Raises InputError for an empty one, and for text without a tokenizer."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InputError(f"{self.name} has no tokenizer: give token ids instead of text")
            prompt = self.tokenizer.encode(prompt)
        return check_ids(prompt if len(prompt) else np.empty(0, np.int64), self.config.vocab).tolist()

    def generate(self, prompt: str | list[int], max_new_tokens: int | None = None, **sampling) -> Generation:
        """Continue a prompt.

        Parameters
        ----------
        prompt : text, or token ids (at least one).
        max_new_tokens : at least 1, and prompt + max_new_tokens has to fit the context; None runs to the context limit.
        **sampling : `temperature`, `top_k`, `top_p`, `seed` of `Sampler`; greedy by default.

        Raises
        ------
        InputError : bad arguments, before any compute.
        NumericsError : non-finite logits.
        """
        generation, steps = self.start(prompt, max_new_tokens, **sampling)
        for _ in steps:
            pass
        return generation

    def stream(self, prompt: str | list[int], max_new_tokens: int | None = None, **sampling) -> Iterator[str]:
        """Like `generate`, but yields pieces of text as they come, never a part of a character."""
        generation, steps = self.start(prompt, max_new_tokens, **sampling)
        if self.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer: use generate() with token ids")
        return self._pieces(steps)

    def _pieces(self, steps: Iterator[int]) -> Iterator[str]:
        stream = self.tokenizer.stream()
        for token in steps:
            if piece := stream.feed(token):
                yield piece
        if piece := stream.finish():
            yield piece

    def start(
        self, prompt: str | list[int], max_new_tokens: int | None = None, **sampling
    ) -> tuple[Generation, Iterator[int]]:
        """Like `generate`, but returns a generation to be filled, and the ids that fill it as they are drawn."""
        ids, context = self.encode(prompt), self.config.context
        unknown = set(sampling) - {"temperature", "top_k", "top_p", "seed"}
        if unknown:
            raise InputError(f"unknown argument {sorted(unknown)[0]!r}; allowed: temperature, top_k, top_p, seed")
        sampler = Sampler(**sampling)
        if len(ids) > context:
            raise InputError(f"the prompt has {len(ids)} tokens; the context holds {context}")
        if max_new_tokens is not None:
            if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
                raise InputError(f"max_new_tokens {max_new_tokens!r} has to be a whole number >= 1, or None")
            if len(ids) + max_new_tokens > context:
                raise InputError(
                    f"a prompt of {len(ids)} and max_new_tokens={max_new_tokens} do not fit the context of {context}; "
                    f"at most {context - len(ids)} new tokens do, None runs to the limit"
                )
        generation = Generation(prompt_tokens=len(ids))
        return generation, self._steps(generation, ids, max_new_tokens, sampler)

    def _steps(self, generation: Generation, ids: list[int], limit: int | None, sampler: Sampler) -> Iterator[int]:
        """Yields new ids as they are chosen and fills `generation`."""
        room = self.config.context - len(ids)
        generator, eos = sampler.generator(), self.config.eos_ids
        with self.session() as session:
            while True:
                if len(generation.ids) == (room if limit is None else limit):
                    generation.stop_reason = CONTEXT_LIMIT if limit is None else TOKEN_LIMIT
                    break
                clock = time.perf_counter()
                logits = session.extend(generation.ids[-1:] or ids)
                seconds = time.perf_counter() - clock
                if generation.ids:
                    generation.token_seconds.append(seconds)
                else:
                    generation.prefill_seconds = seconds
                token = sampler.choose(logits, generator)
                if token in eos:
                    generation.stop_reason = END_OF_TEXT
                    break
                generation.ids.append(token)
                yield token
        if self.tokenizer:
            generation.text = self.tokenizer.decode(generation.ids)


def load(
    model: str = "smollm2-135m", scheme: str | Scheme | None = None, head: str | None = None, threads: int | None = None
) -> Model:
    """Load a model.

    Parameters
    ----------
    model : ``smollm2-135m``, ``gpt2``, ``gpt2-random``, a hub id, a folder of transformers' format, a quantized
        checkpoint (`cachequant.checkpoint`), or a GGUF file.
    scheme : a name of `cachequant.schemes`, such as ``fp32``, ``int8``, ``w8a12``, ``int8+head``; ``auto`` takes the
        scheme for this CPU that keeps the quality of fp32 at about the speed of int8. None is the scheme of a
        quantized checkpoint, else ``fp32``.
    head : ``int8`` or ``int8-block32`` quantizes the output projection too.
    threads : of the kernels; None keeps the current setting (at first: physical cores).

    Raises
    ------
    InputError, AssetError, ConfigError, NumericsError : unknown names, missing or damaged files, configurations that
        are not handled, non-finite weights; before any compute.
    """
    chosen = None if scheme is None and head is None else schemes.get(scheme or "fp32", head)
    if threads is not None:
        if not 1 <= threads <= kernels.most_threads():
            raise InputError(f"threads {threads!r} has to be between 1 and {kernels.most_threads()}")
        kernels.set_threads(threads)
    asset = models.resolve(model)
    return Model(asset, build(asset, chosen or asset.scheme or schemes.get("fp32")))
