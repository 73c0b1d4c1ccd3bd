"""The forward pass of GPT-2 and Llama decoders over paged K/V (GPT-2: Radford et al. 2019; Llama: Touvron et al. 2023).

Written against NumPy arrays and the kernels only. Every row of a chunk goes through arithmetic that does not depend on
the other rows, so logits are bit-identical however a prompt is cut (contract C1), for every chunk-stable scheme.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass

import numpy as np

from cachequant.decoder.blocks import Blocks
from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.linear import PackedLinear, pack, pack_head
from cachequant.decoder.weights import matrix
from cachequant.kernels import append, attention, gemm, pointwise
from cachequant.kv.table import Pages
from cachequant.schemes import Scheme

SITES = ("qkv", "output", "up", "down")  # the inputs of a block's matrices
CHUNK = 512  # tokens a pass: bounds the scratch memory of a long prefill


@dataclass(frozen=True, eq=False)
class Norm:
    """RMSNorm, or LayerNorm when there is a bias."""

    weight: np.ndarray
    bias: np.ndarray | None
    eps: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        out = np.empty_like(x)
        if self.bias is None:
            pointwise.rms_norm(x, self.weight, self.eps, out)
        else:
            pointwise.layer_norm(x, self.weight, self.bias, self.eps, out)
        return out


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder block; `up` holds gate and up stacked where the family has a gate."""

    attn_norm: Norm
    qkv: PackedLinear
    output: PackedLinear
    mlp_norm: Norm
    up: PackedLinear
    down: PackedLinear

    @property
    def nbytes(self) -> int:
        return sum(m.nbytes for m in (self.qkv, self.output, self.up, self.down))


class Decoder:
    """Packed weights of one model under one scheme.

    Parameters
    ----------
    config : the model's shape.
    weights : canonical float32 tensors by name.
    scheme : formats of weights, activations and head.
    shared : a decoder of the same weights whose head is taken, where it is the same, instead of packed again.
    largest : {(layer, site): (K,) largest inputs}, for schemes that are calibrated.
    packed : the matrices by name as `linears` gives them, which are then not packed again.

    Raises
    ------
    InputError : the scheme's transform does not fit the model.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, np.ndarray],
        scheme: Scheme,
        shared: "Decoder | None" = None,
        largest: Mapping[tuple[int, str], np.ndarray] | None = None,
        packed: Mapping[str, PackedLinear] | None = None,
    ):
        self.config, self.scheme, self._see = config, scheme, None
        if scheme.transform:
            for k in (config.width, config.attention_width, config.ffn):
                scheme.transform.check(k)  # before anything is packed
        self._embedding = None if config.tied else weights["embed.weight"]  # a tied one is read from the packed head
        self._positions = weights["positions.weight"] if config.family == "gpt2" else None
        self.final_norm = self._norm(weights, "final_norm")
        if packed is not None:
            self.head = packed["head"]
        elif (
            shared is not None
            and shared.scheme.head == scheme.head
            and (scheme.head is None or (shared.scheme.activation is None) == (scheme.activation is None))
        ):
            self.head = shared.head
        else:
            name = "embed.weight" if config.tied else "head.weight"
            self.head = pack_head(matrix(weights, name, scheme.head), scheme)
        self.layers = [self._layer(weights, i, largest or {}, packed) for i in range(config.layers)]
        if config.rope_theta is not None:
            angles = np.outer(np.arange(config.context), config.rope_frequencies())
            self._cos, self._sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        else:
            self._cos = self._sin = None
        self._blocks = Blocks(config, self.layers, self._cos, self._sin) if Blocks.fit(self.layers) else None

    def _norm(self, weights: Mapping[str, np.ndarray], name: str) -> Norm:
        bias = weights.get(name + ".bias")
        return Norm(np.array(weights[name + ".weight"]), None if bias is None else np.array(bias), self.config.norm_eps)

    def _layer(
        self,
        weights: Mapping[str, np.ndarray],
        i: int,
        largest: Mapping[tuple[int, str], np.ndarray],
        packed: Mapping[str, PackedLinear] | None,
    ) -> Layer:
        prefix = f"layers.{i}."

        def linear(site: str, *names: str) -> PackedLinear:
            if packed is not None:
                return packed[prefix + site]
            names = [prefix + n for n in names]
            matrices = [matrix(weights, n + ".weight", self.scheme.weight, self.scheme.transform) for n in names]
            biases = [weights.get(n + ".bias") for n in names]
            return pack(matrices, biases, self.scheme, largest.get((i, site)))

        gpt2 = self.config.family == "gpt2"
        return Layer(
            attn_norm=self._norm(weights, prefix + "attn_norm"),
            qkv=linear("qkv", *(["attn.qkv"] if gpt2 else ["attn.q", "attn.k", "attn.v"])),
            output=linear("output", "attn.o"),
            mlp_norm=self._norm(weights, prefix + "mlp_norm"),
            up=linear("up", *(["mlp.up"] if gpt2 else ["mlp.gate", "mlp.up"])),
            down=linear("down", "mlp.down"),
        )

    @property
    def linears(self) -> dict[str, PackedLinear]:
        """The packed matrices by name: `head`, and `layers.I.SITE` for each of SITES."""
        blocks = {f"layers.{i}.{site}": getattr(layer, site) for i, layer in enumerate(self.layers) for site in SITES}
        return {"head": self.head, **blocks}

    @property
    def nbytes(self) -> int:
        """Bytes of packed matrices and biases, with the head (an untied float32 embedding is read a row at a time)."""
        return sum(layer.nbytes for layer in self.layers) + self.head.nbytes

    def watched(self, see: Callable[[int, np.ndarray, np.ndarray, np.ndarray], None]) -> "Decoder":
        """The same decoder, which shows `see(layer, q, k, v)` what attention gets: (T, heads, head_dim), positions
        rotated in. What it writes to k and v is stored in their place."""
        other = copy(self)
        other.layers, other._see = list(self.layers), see
        return other

    def forward(self, ids: np.ndarray, pages: Pages, start: int) -> np.ndarray:
        """Append tokens at positions `start`, ... to the pages and return their final hidden states.

        Parameters
        ----------
        ids : (T,) int64 token ids.
        pages : with room for start + T tokens.
        start : absolute position of the first token.

        Returns
        -------
        (T, width) float32, after the final norm.
        """
        chunk = CHUNK if self.scheme.chunk_stable else len(ids)
        parts = [self._forward(ids[i : i + chunk], pages, start + i) for i in range(0, len(ids), chunk)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """(T, width) final hidden states -> (T, V) float32 logits."""
        return self.head(hidden)

    def _embed(self, ids: np.ndarray, start: int) -> np.ndarray:
        if self._embedding is None:
            x = gemm.rows(self.head.weight, ids)
        else:
            x = self._embedding[ids]  # (T, width), a copy
        if self._positions is not None:
            x += self._positions[start : start + len(ids)]
        return x

    def _forward(self, ids: np.ndarray, pages: Pages, start: int) -> np.ndarray:
        x = self._embed(ids, start)
        if self._blocks is not None and self._blocks.layers is self.layers:
            self._blocks.run(x, pages, start)
        else:
            x = self.step_by_step(x, pages, start)
        return self.final_norm(x)

    def step_by_step(self, x: np.ndarray, pages: Pages, start: int) -> np.ndarray:
        """What `Blocks.run` does, kernel by kernel and bit for bit: for layers that something was put in front of."""
        for i, layer in enumerate(self.layers):
            x = layer.output(self._attention(i, layer, x, pages, start), residual=x)
            x = layer.down(self._activate(layer.up(layer.mlp_norm(x))), residual=x)
        return x

    def _attention(self, i: int, layer: Layer, x: np.ndarray, pages: Pages, start: int) -> np.ndarray:
        c, tokens = self.config, len(x)
        qkv = layer.qkv(layer.attn_norm(x)).reshape(tokens, c.heads + 2 * c.kv_heads, c.head_dim)
        if c.rope_theta is not None:
            pointwise.rope(qkv[:, : c.heads + c.kv_heads], self._cos, self._sin, start)
        q, k, v = qkv[:, : c.heads], qkv[:, c.heads : -c.kv_heads], qkv[:, -c.kv_heads :]  # (T, heads, head_dim)
        if self._see is not None:
            self._see(i, q, k, v)
        append.append(k, v, pages.exact, i, start, pages.coded, pages.coding)
        out = np.empty((tokens, c.heads, c.head_dim), np.float32)
        attention.attend(q, pages.exact, i, start, c.kv_heads, c.head_dim**-0.5, out, pages.coded, pages.coding)
        return out.reshape(tokens, -1)

    def _activate(self, up: np.ndarray) -> np.ndarray:
        if self.config.activation == "silu":
            out = np.empty((len(up), up.shape[1] // 2), np.float32)
            pointwise.silu_mul(up, out)
            return out
        pointwise.gelu_tanh(up)
        return up
