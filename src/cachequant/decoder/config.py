"""What a decoder is: one frozen description for the GPT-2 and Llama families, read strictly from other formats.

A field that changes the computation and is not handled here is refused by name (`ConfigError`), never ignored.
Hugging Face dictionaries are read and written by `hf_config`, GGUF metadata by `cachequant.assets.gguf`.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cachequant.decoder.rope import LinearScaling, Llama3Scaling, RopeScaling, inverse_frequencies
from cachequant.errors import ConfigError

__all__ = ["DecoderConfig", "LinearScaling", "Llama3Scaling", "RopeScaling"]

ACTIVATIONS = {"gpt2": "gelu_tanh", "llama": "silu"}
LINEARS = {
    "gpt2": ("attn.qkv", "attn.o", "mlp.up", "mlp.down"),
    "llama": ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.gate", "mlp.up", "mlp.down"),
}
MOST_LAYERS = 4096  # far above any model: a damaged file must not ask for the names of a billion tensors
_SIZES = ("vocab", "context", "width", "layers", "heads", "kv_heads", "head_dim", "ffn")


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and options of a decoder.

    Parameters
    ----------
    family : {"gpt2", "llama"}
        gpt2: layer norm, learned positions, GELU. llama: RMS norm, RoPE, gated SiLU, grouped-query attention.
    vocab, context, width, layers, heads, kv_heads, head_dim, ffn : int
        `heads * head_dim` may differ from `width` in the llama family; `kv_heads` divides `heads`.
    norm_eps : float
    activation : {"gelu_tanh", "silu"}
    rope_theta : float or None
        None in the gpt2 family.
    rope_scaling : LinearScaling, Llama3Scaling or None
    tied : bool
        The head shares the embedding's matrix.
    attention_bias, output_bias, mlp_bias : bool
        Biases of q/k/v, of the attention output and of the MLP (all true in the gpt2 family).
    eos_ids : tuple of int
        Tokens that end a text; may be empty.
    bos_id : int or None

    Raises
    ------
    ConfigError
        A value that the decoder cannot run with.
    """

    family: Literal["gpt2", "llama"]
    vocab: int
    context: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    norm_eps: float
    activation: str
    tied: bool
    rope_theta: float | None = None
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def __post_init__(self):
        if self.family not in LINEARS:
            raise ConfigError(f"family is {self.family!r}; allowed: {', '.join(LINEARS)}")
        for field in _SIZES:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{field} is {value!r}, it must be an integer of at least 1")
        if self.layers > MOST_LAYERS:
            raise ConfigError(f"layers is {self.layers}; allowed: at most {MOST_LAYERS}")
        if self.heads % self.kv_heads:
            raise ConfigError(f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}")
        if not isinstance(self.norm_eps, float) or not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps is {self.norm_eps!r}, it must lie between 0 and 1")
        if self.activation != ACTIVATIONS[self.family]:
            allowed = ACTIVATIONS[self.family]
            raise ConfigError(f"activation is {self.activation!r}; the {self.family} family runs with {allowed!r}")
        object.__setattr__(self, "eos_ids", tuple(self.eos_ids))
        for token in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.vocab:
                raise ConfigError(f"token id {token!r} (eos or bos) is not an integer in [0, {self.vocab})")
        (self._check_gpt2 if self.family == "gpt2" else self._check_llama)()

    def _check_gpt2(self):
        if self.kv_heads != self.heads:
            raise ConfigError(f"kv_heads is {self.kv_heads}; the gpt2 family has one a query head ({self.heads})")
        if self.heads * self.head_dim != self.width:
            raise ConfigError(f"width is {self.width}, not heads x head_dim = {self.heads} x {self.head_dim}")
        if self.rope_theta is not None or self.rope_scaling is not None:
            raise ConfigError(f"rope_theta is {self.rope_theta}; the gpt2 family has learned positions (None)")
        if not (self.attention_bias and self.output_bias and self.mlp_bias):
            raise ConfigError("attention_bias, output_bias and mlp_bias are all true in the gpt2 family")

    def _check_llama(self):
        theta = self.rope_theta
        if isinstance(theta, bool) or not isinstance(theta, int | float) or not 0 < theta < math.inf:
            raise ConfigError(f"rope_theta is {theta!r}, it must be a positive number")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}; RoPE rotates pairs, so it must be even")

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any]) -> "DecoderConfig":
        """Read the dictionary of a Hugging Face `config.json` (model_type gpt2, llama, mistral or qwen2).

        Raises
        ------
        ConfigError
            A missing field, or one that is not handled: its name, its value and what is allowed.
        """
        from cachequant.decoder import hf_config

        return hf_config.read(fields)

    def to_hf(self) -> dict[str, Any]:
        """The dictionary for a `config.json` that transformers loads; `from_hf` of it gives this configuration back."""
        from cachequant.decoder import hf_config

        return hf_config.write(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "DecoderConfig":
        """Inverse of `to_json`."""
        fields = dict(fields)
        scaling = fields.pop("rope_scaling", None)
        if scaling is not None:
            scaling = (Llama3Scaling if "low" in scaling else LinearScaling)(**scaling)
        try:
            return cls(**fields, rope_scaling=scaling)
        except TypeError as error:
            raise ConfigError(f"not a decoder configuration: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values, for files of cachequant's own."""
        return dataclasses.asdict(self)

    @property
    def attention_width(self) -> int:
        """Columns of the queries of one token: heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the keys (or values) of one token: kv_heads x head_dim."""
        return self.kv_heads * self.head_dim

    def linear_names(self) -> list[str]:
        """Names of the matrices that a scheme quantizes (`layers.0.attn.q`, ...), in the order of the forward pass."""
        return [f"layers.{layer}.{name}" for layer in range(self.layers) for name in LINEARS[self.family]]

    def rope_frequencies(self) -> np.ndarray:
        """Radians a token of each rotated pair, float64, shape (head_dim / 2,).

        Raises
        ------
        ConfigError
            The family has learned positions.
        """
        if self.rope_theta is None:
            raise ConfigError(f"the {self.family} family has learned positions, not RoPE")
        return inverse_frequencies(self.head_dim, self.rope_theta, self.rope_scaling)
