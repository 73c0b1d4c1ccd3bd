"""A transformers cache whose full pages are codes, for any model with full attention."""

from contextvars import ContextVar
from copy import copy

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from cachequant.errors import InputError
from cachequant.hf.geometry import geometry
from cachequant.hf.padding import left_padding, refuse_padding
from cachequant.hf.store import Store
from cachequant.kv.basis import Basis
from cachequant.kv.coding import Coding, coding
from cachequant.kv.formats import PageFormat

# caches whose codes the attention function reads, one for each forward pass that is running, the innermost first; None
# for a pass with another cache. Set by `cachequant.hf.attach`.
PASSES: ContextVar[tuple["RotatedCache | None", ...]] = ContextVar("PASSES", default=())


def reading() -> "RotatedCache | None":
    """The cache whose codes the attention function has to read now."""
    return next(iter(PASSES.get()), None)


class RotatedCache(Cache):
    """Keys and values as pages of codes; `generate(..., cache=RotatedCache(model.config))` uses it.

    Codes are decoded for each call, so every attention implementation can read them; nothing dense is kept. Tokens of
    one call see each other exactly (`exact_prefill`), and of earlier tokens the exact rows of their own page and of the
    leading page, codes of the others. Where calls end at the ends of pages, as with `generate(prefill_chunk_size=32)`
    and no padding, that is the rule of `cachequant.load(kv=...)`. A model that `cachequant.hf.attach` was called for
    reads the codes instead, under that rule for any calls.

    The newest 64 tokens stay exact beside their codes, so that a crop of up to 64 tokens leaves no trace. Copies
    (`copy.deepcopy`) and rows that are repeated share pages.

    Parameters
    ----------
    config : of the model.
    kv : page format, such as ``k4v4``, ``k4v3,0-1:k8v8``, ``int8``, ``fp16``.
    attention_mask : (B, tokens) of the first call; needed if it has padding, which has to be on the left. Pages count
        from each row's first token.
    calibration : ``none`` rotates only, ``auto`` fits the basis of the model that `config` was loaded from at first
        use, the path of a calibration file of that model, or a `Basis`.

    Raises
    ------
    ConfigError : sliding windows, cross attention.
    InputError : a format or a calibration that does not fit, a mask that is no left padding.
    """

    def __init__(
        self,
        config,
        kv: str | PageFormat = "k4v4",
        attention_mask: torch.Tensor | None = None,
        calibration: str | Basis = "none",
    ):
        self._begin(prepare(config, kv, calibration), attention_mask)

    @classmethod
    def of(cls, prepared: tuple[tuple[int, int, int], Coding], attention_mask: torch.Tensor | None) -> "RotatedCache":
        """A cache of what `prepare` returned."""
        cache = cls.__new__(cls)
        cache._begin(prepared, attention_mask)
        return cache

    def _begin(self, prepared: tuple[tuple[int, int, int], Coding], attention_mask: torch.Tensor | None) -> None:
        self._prepared = prepared
        (layers, *_), self._coding = prepared
        super().__init__(layers=[RotatedLayer(self, i) for i in range(layers)])
        self.reset(attention_mask)

    @property
    def kv(self) -> PageFormat:
        """The page format in effect."""
        return self._coding.format

    def bytes(self) -> int:
        """Bytes held: pages of exact rows and of codes with room that is not used yet, their addresses, the basis.

        Pages that copies share count in each of them.
        """
        return self._coding.nbytes + (self._store.nbytes if self._store else 0)

    def reset(self, attention_mask: torch.Tensor | None = None) -> None:
        """Forget everything, the padding too; `attention_mask` is that of the next batch."""
        self._store: Store | None = None
        self._pads = None if attention_mask is None else left_padding(attention_mask)

    def expect(self, attention_mask: torch.Tensor | None) -> None:
        """Take the padding of a mask, none if it is None, or raise InputError if the cache has another one."""
        known = self._store.pads if self._store else self._pads
        if known is None:
            self._pads = [] if attention_mask is None else left_padding(attention_mask)
        elif attention_mask is None:
            if any(known):
                raise InputError(f"no attention_mask, but the cache was filled with padding {known}")
        else:
            pads = left_padding(attention_mask, begun=False)
            if [min(pad, attention_mask.shape[1]) for pad in _repeated(known or [0], len(pads))] != pads:
                raise InputError(f"attention_mask has padding {pads}, but the cache was filled with {known}")

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args, **kwargs):
        """Store the keys and values (B, kv_heads, T, d) of one layer, and return those of all tokens.

        Raises
        ------
        InputError : tensors that do not fit or need gradients; a batch whose padding is not known.
        """
        k, v = (self._taken(x, name) for x, name in ((key_states, "keys"), (value_states, "values")))
        if self._pads is None and reading() is not self:
            refuse_padding(len(k), args, kwargs)
        if self._store is None:
            self._store = self._opened(len(k))
        self._store.append(layer_idx, k, v)
        if reading() is self:
            return key_states, value_states
        self._store.forget_scratch()
        return tuple(torch.from_numpy(x).to(key_states.dtype) for x in self._store.read(layer_idx, k, v))

    def attend(self, layer_idx: int, query: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of the tokens that `update` has just stored; (B, heads, T, d) -> (B, T, heads, d)."""
        q = _rows(query)
        out = np.zeros(q.shape, np.float32)
        self._store.attend(layer_idx, q, scale, out)
        self._store.forget_scratch()
        return torch.from_numpy(out).to(query.dtype)

    def _taken(self, x: torch.Tensor, name: str) -> np.ndarray:
        _, kv_heads, d = self._prepared[0]
        if x.ndim != 4 or (x.shape[1], x.shape[3]) != (kv_heads, d) or not x.shape[2]:
            raise InputError(f"{name} of shape {tuple(x.shape)} do not fit (batch, {kv_heads}, tokens, {d})")
        return _rows(x)

    def _opened(self, batch: int) -> Store:
        pads = self._pads or [0] * batch
        if batch % len(pads):
            raise InputError(f"attention_mask of {len(pads)} rows does not fit a batch of {batch}")
        return Store(*self._prepared[0], self._coding, _repeated(pads, batch))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest `-tokens_to_remove` tokens: at most 64 of the most that were stored, unless the cut is in
        exact pages or at a page's end.

        Raises
        ------
        InputError : a positive number, more tokens than there are, or a cut inside a page with codes alone.
        """
        if tokens_to_remove > 0:
            raise InputError(f"crop({tokens_to_remove}): allowed are numbers up to 0, minus the tokens to forget")
        if tokens_to_remove and self._store:
            self._store.crop(-int(tokens_to_remove))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes row `beam_idx[i]`."""
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times."""
        if self._store:
            self._select(_repeated(range(len(self._store.pads)), repeats * len(self._store.pads)))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows of an index, or of a boolean for each row."""
        if self._store:
            self._select(torch.arange(len(self._store.pads))[indices].tolist())

    def _select(self, rows: list[int]) -> None:
        if self._store and rows != list(range(len(self._store.pads))):
            self._store.select(rows)

    def __deepcopy__(self, memo) -> "RotatedCache":
        other = copy(self)
        other.layers = [RotatedLayer(other, i) for i in range(len(self.layers))]
        other._store = self._store.fork() if self._store else None
        return other

    @property
    def batch_size(self) -> int:
        """Rows, or -1 before the first call."""
        return len(self._store.pads) if self._store else -1


class RotatedLayer(CacheLayerMixin):
    """What transformers asks of one layer of a `RotatedCache`."""

    is_croppable, is_sliding, supports_early_init = True, False, False

    def __init__(self, cache: RotatedCache, index: int):
        super().__init__()
        self._cache, self._index = cache, index

    def lazy_initialization(self, key_states, value_states) -> None:
        """Nothing to do: the first update allocates."""

    def update(self, key_states, value_states, *args, **kwargs):
        return self._cache.update(key_states, value_states, self._index, *args, **kwargs)

    def get_seq_length(self) -> int:
        return self._cache._store.lengths[self._index] if self._cache._store else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


def prepare(config, kv: str | PageFormat, calibration: str | Basis) -> tuple[tuple[int, int, int], Coding]:
    """(layers, kv_heads, head_dim) of a model, and how its pages are coded. Raises as `RotatedCache` does."""
    layers, kv_heads, head_dim = geometry(config)
    basis = calibration if isinstance(calibration, Basis) else _fitted(config, kv, calibration)
    return (layers, kv_heads, head_dim), coding(kv, layers, kv_heads, head_dim, basis)


def _fitted(config, kv: str | PageFormat, calibration: str) -> Basis | None:
    from cachequant.assets import models
    from cachequant.kv import formats
    from cachequant.kv.calibration import basis_for, check_calibration

    check_calibration(calibration)
    if calibration == "none" or not formats.get(kv).compressed:
        return None
    if not config.name_or_path:
        raise InputError(f"calibration {calibration!r} needs a model that was loaded by name: give a Basis")
    return basis_for(models.resolve(config.name_or_path), None, calibration)


def _rows(x: torch.Tensor) -> np.ndarray:
    """(B, heads, T, d) -> (B, T, heads, d) float32, copied only if a token's heads do not lie together."""
    if x.requires_grad:
        raise InputError("keys, values and queries with gradients: run the model under torch.no_grad()")
    if x.device.type != "cpu":
        raise InputError(f"tensors on {x.device}: allowed is the CPU")
    x = x.transpose(1, 2).float()
    d = x.shape[-1]
    return (x if x.stride()[2:] == (d, 1) else x.contiguous()).numpy()


def _repeated(values, count: int) -> list[int]:
    """Each value equally often, in order, as transformers expands a batch."""
    each = max(count // max(len(values), 1), 1)
    return [value for value in values for _ in range(each)]
