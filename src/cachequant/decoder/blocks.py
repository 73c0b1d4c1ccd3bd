"""A decoder's blocks as the numbers that `kernels.passes` runs through."""

from collections.abc import Sequence

import numpy as np

from cachequant.decoder.config import DecoderConfig
from cachequant.decoder.linear import PackedLinear
from cachequant.kernels import gemm, native, passes, region
from cachequant.kv.table import Pages

_NOTHING = np.empty((0, 0), np.float32)


class Blocks:
    """The blocks of one decoder, ready to run in one parallel region.

    Parameters
    ----------
    config : the decoder's shape.
    layers : its blocks; they are kept, since the numbers hold their addresses.
    cos, sin : (positions, head_dim / 2) float32 for rotary positions, or None.
    """

    def __init__(self, config: DecoderConfig, layers: Sequence, cos: np.ndarray | None, sin: np.ndarray | None):
        self.layers, self._keep = layers, []
        c, linears = config, [m for layer in layers for m in (layer.qkv, layer.output, layer.up, layer.down)]
        table = native.table(linears[0].weight.kernel_set)
        program = np.array([self._block(layer) for layer in layers], np.int64)
        activation = passes.SILU if c.activation == "silu" else passes.GELU
        shape = np.array([c.heads, c.kv_heads, c.head_dim, activation, cos is not None], np.int64)
        forms = [gemm.form(m.weight, m.activation) for m in linears]
        widths = (
            max(c.attention_width, layers[0].up.weight.n),
            max(-(-m.weight.k // m.weight.kernel_set.group) for m in linears),
            max(gemm.steps_of_row(m.weight, form) for m, form in zip(linears, forms, strict=True)),
            max(m.weight.k if form is None else 0 for m, form in zip(linears, forms, strict=True)),
        )
        reals, angles = np.array([c.norm_eps, c.head_dim**-0.5]), (_NOTHING, _NOTHING) if cos is None else (cos, sin)
        self._fixed = region.fixed_numbers(table, program, shape, reals, widths, *angles)
        self._keep += [table, program, shape, reals, *angles]

    @staticmethod
    def fit(layers: Sequence) -> bool:
        """Whether such blocks can run together: plain packed matrices for one kernel set, no scale for all tokens."""
        linears = [m for layer in layers for m in (layer.qkv, layer.output, layer.up, layer.down)]
        return all(isinstance(m, PackedLinear) and not gemm.shared(m.activation) for m in linears) and (
            len({m.weight.kernel_set for m in linears}) == 1
        )

    def run(self, x: np.ndarray, pages: Pages, start: int) -> None:
        """The (T, width) float32 hidden states of positions start, ... through all blocks, in place.

        pages : with room for start + T tokens.
        """
        region.run(self._fixed, x, pages.exact, start, pages.coded, pages.coding)

    def _block(self, layer) -> list[int]:
        return [
            *self._norm(layer.attn_norm),
            *self._matrix(layer.qkv),
            *self._matrix(layer.output),
            *self._norm(layer.mlp_norm),
            *self._matrix(layer.up),
            *self._matrix(layer.down),
        ]

    def _norm(self, norm) -> list[int]:
        return [self._address(norm.weight), self._address(norm.bias)]

    def _matrix(self, linear: PackedLinear) -> list[int]:
        w, form = linear.weight, gemm.form(linear.weight, linear.activation)
        place = w.address, w.scale_address, w.scale_kind, w.block, w.n, w.k
        return [*place, self._address(form), w.kind == "codes", self._address(linear.bias)]

    def _address(self, array: np.ndarray | None) -> int:
        """Address of an array that is kept, or 0."""
        if array is None:
            return 0
        self._keep.append(array)
        return array.ctypes.data
