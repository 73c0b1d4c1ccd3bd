"""A model to generate with: decoder, tokenizer and page pool behind one object."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cachequant import kernels, schemes
from cachequant.assets import models
from cachequant.decoder.calibration import build
from cachequant.decoder.forward import Decoder
from cachequant.decoder.generation import Generation, check, steps
from cachequant.decoder.sampling import Sampler
from cachequant.errors import CachequantError, InputError
from cachequant.kv import formats
from cachequant.kv.calibration import basis_for
from cachequant.kv.checks import check_ids
from cachequant.kv.coding import Coding, coding
from cachequant.kv.formats import PageFormat
from cachequant.kv.pages import PagePool
from cachequant.kv.sensitivity import mixed
from cachequant.kv.session import Session
from cachequant.schemes import Scheme

if TYPE_CHECKING:
    from cachequant.kv.prefix import PrefixCache


class Model:
    """Decoder, tokenizer and pages of one model under one scheme; made by `load`."""

    def __init__(self, asset: models.ModelAsset, decoder: Decoder, pages: Coding | None = None):
        self._asset, self._decoder = asset, decoder
        self.name, self.config, self.tokenizer = asset.name, asset.config, asset.tokenizer
        self.chat_template = asset.chat_template  # Jinja2, or None
        self.scheme, self.random, self.sha256 = decoder.scheme, asset.random, asset.sha256
        c = asset.config
        self.pages = pages or coding("fp32", c.layers, c.kv_heads, c.head_dim)
        self.pool = PagePool(c.layers, c.kv_heads, c.head_dim, self.pages)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices that a decoded token reads."""
        return self._decoder.nbytes

    @property
    def kv(self) -> PageFormat:
        """How pages of keys and values are stored."""
        return self.pages.format

    @property
    def kernel_set(self) -> str:
        """Name of the kernels that multiply the blocks' matrices; bits are promised within one set."""
        return self._decoder.layers[0].qkv.weight.kernel_set.name

    @property
    def fingerprint(self) -> str:
        """sha256 that binds K/V to weights, scheme, page format and tokenizer."""
        tokenizer = self.tokenizer.sha256 if self.tokenizer else ""
        parts = (self.sha256, repr(self.scheme), self.pages.fingerprint, tokenizer)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def with_scheme(self, scheme: str | Scheme, head: str | None = None) -> "Model":
        """The same model under another scheme; parts that do not change are shared, not copied."""
        scheme = schemes.get(scheme, head)
        return Model(self._asset, build(self._asset, scheme, self._decoder), self.pages)

    def with_kv(self, kv: str | PageFormat, calibration: str = "auto") -> "Model":
        """The same model with another page format; weights are shared, not copied."""
        return Model(self._asset, self._decoder, _pages(self._asset, self._decoder, kv, calibration))

    def session(self) -> Session:
        """A new, empty session."""
        return Session(self._decoder, self.pool, self)

    def load_session(self, path: str | Path, key: bytes | None = None) -> Session:
        """The session that `Session.save` wrote.

        Parameters
        ----------
        path : of the file.
        key : that it was signed with; None for one that is not signed.

        Raises
        ------
        SnapshotError : damaged, changed, signed otherwise, or of another model, scheme or kernel set; before any page
            is taken.
        """
        from cachequant.kv import snapshot

        return snapshot.load(self, path, key)

    def head(self, hidden: np.ndarray) -> np.ndarray:
        """(T, width) final hidden states -> (T, V) float32 logits."""
        return self._decoder.logits(hidden)

    def encode(self, prompt: str | list[int] | np.ndarray) -> list[int]:
        """Token ids of a prompt, checked. Raises InputError for an empty one, and for text without a tokenizer."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InputError(f"{self.name} has no tokenizer: give token ids instead of text")
            prompt = self.tokenizer.encode(prompt)
        if not len(prompt):
            raise InputError("the prompt is empty: expected a text, or at least one token id")
        return check_ids(prompt, self.config.vocab).tolist()

    def generate(
        self,
        prompt: str | list[int],
        max_new_tokens: int | None = None,
        cache: "PrefixCache | None" = None,
        **sampling,
    ) -> Generation:
        """Continue a prompt.

        Parameters
        ----------
        prompt : text, or token ids (at least one).
        max_new_tokens : at least 1, and prompt + max_new_tokens has to fit the context; None runs to the context limit.
        cache : keys and values of earlier prompts and answers; what the prompt shares with them is not computed again,
            which changes the time and no bit of the output.
        **sampling : `temperature`, `top_k`, `top_p`, `seed` of `Sampler`; greedy by default.

        Raises
        ------
        InputError : bad arguments, before any compute.
        NumericsError : non-finite logits.
        """
        generation, drawn = self.start(prompt, max_new_tokens, cache, **sampling)
        for _ in drawn:
            pass
        return generation

    def stream(
        self,
        prompt: str | list[int],
        max_new_tokens: int | None = None,
        cache: "PrefixCache | None" = None,
        **sampling,
    ) -> Iterator[str]:
        """Like `generate`, but yields pieces of text as they come, never a part of a character."""
        generation, drawn = self.start(prompt, max_new_tokens, cache, **sampling)
        if self.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer: use generate() with token ids")
        return self.tokenizer.pieces(drawn)

    def start(
        self,
        prompt: str | list[int],
        max_new_tokens: int | None = None,
        cache: "PrefixCache | None" = None,
        **sampling,
    ) -> tuple[Generation, Iterator[int]]:
        """Like `generate`, but returns a generation to be filled, and the ids that fill it as they are drawn."""
        ids = self.encode(prompt)
        sampler = check(len(ids), max_new_tokens, self.config.context, 0, **sampling)
        if cache is not None:
            cache.require(self)
        generation = Generation(prompt_tokens=len(ids))
        return generation, self._steps(generation, ids, max_new_tokens, sampler, cache)

    def _steps(
        self,
        generation: Generation,
        ids: list[int],
        limit: int | None,
        sampler: Sampler,
        cache: "PrefixCache | None",
    ) -> Iterator[int]:
        if cache is None:
            with self.session() as session:
                yield from steps(self, session, generation, ids, limit, sampler)
            return
        session, generation.cache = cache.session(ids)
        sound = True
        with session:
            try:
                yield from steps(self, session, generation, ids[session.position :], limit, sampler)
            except CachequantError:
                sound = False
                raise
            finally:  # also what was stored when the caller stopped early
                if sound:
                    cache.insert(session, generation.cache)


def load(
    model: str = "smollm2-135m",
    scheme: str | Scheme | None = None,
    head: str | None = None,
    threads: int | None = None,
    kv: str | PageFormat = "fp32",
    calibration: str = "auto",
) -> Model:
    """Load a model.

    The packed matrices of a float32 model are kept in the cache folder, where the next process that loads it under the
    same scheme finds them; CACHEQUANT_PACKED says how many GB of them may be kept (4 if it is not set, 0 for none).

    Parameters
    ----------
    model : ``smollm2-135m``, ``gpt2``, ``gpt2-random``, a hub id, a folder of transformers' format, a quantized
        checkpoint (`cachequant.checkpoint`), or a GGUF file, whose Q8_0 matrices are taken as they are by the schemes
        ``q8_0`` and ``int8-block32``.
    scheme : a name of `cachequant.schemes`, such as ``fp32``, ``int8``, ``w8a12``, ``int8+head``; ``auto`` takes the
        scheme for this CPU that keeps the quality of fp32 at about the speed of int8 (`cachequant.tuning`). None is the
        scheme of a quantized checkpoint, else ``fp32``.
    head : ``int8`` or ``int8-block32`` quantizes the output projection too.
    threads : of the kernels; None keeps the current setting (at first: physical cores).
    kv : page format of keys and values, such as ``fp32``, ``fp16``, ``int8``, ``k4v4``, ``k4v3,0-1:k8v8``, or
        ``mixed``.
    calibration : ``auto`` fits the basis of a coded format at first use and keeps it, ``none`` rotates only; else the
        path of a file that `cachequant calibrate` wrote.

    Raises
    ------
    InputError, AssetError, ConfigError, NumericsError : unknown names, missing or damaged files, configurations that
        are not handled, non-finite weights; before any compute.
    """
    chosen = None if scheme is None and head is None else schemes.get(scheme or "fp32", head)
    kv = formats.get(kv)
    if threads is not None:
        if not 1 <= threads <= kernels.most_threads():
            raise InputError(f"threads {threads!r} has to be between 1 and {kernels.most_threads()}")
        kernels.set_threads(threads)
    asset = models.resolve(model)
    kv.check(asset.config.layers, asset.config.head_dim)
    decoder = build(asset, chosen or asset.scheme or schemes.get("fp32"), keep=True)
    return Model(asset, decoder, _pages(asset, decoder, kv, calibration))


def _pages(asset: models.ModelAsset, decoder: Decoder, kv: str | PageFormat, calibration: str) -> Coding:
    kv, c = formats.get(kv), asset.config
    kv.check(c.layers, c.head_dim)
    basis = basis_for(asset, decoder, calibration) if kv.compressed else None
    if kv.name == formats.MIXED:
        kv = mixed(asset, decoder, basis)
    return coding(kv, c.layers, c.kv_heads, c.head_dim, basis)
