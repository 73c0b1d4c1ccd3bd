"""Which part of a scheme costs quality: weights and inputs rounded apart, and inputs at one place of a block at a time.

Inputs are rounded to codes and back before a float32 product, which has the error of the format without its kernel. The
parts are scored like schemes, by `quality.evaluate`.
"""

from dataclasses import dataclass

from cachequant.decoder.forward import SITES
from cachequant.decoder.model import Model
from cachequant.schemes import BFP8, EXACT, INT8, Block, Quantizer, Scheme
from cachequant.study import taps


@dataclass(frozen=True)
class Part:
    """What is rounded.

    label : for figures and tables.
    weights : the scheme of the weights, without activations: ``fp32``, ``w8`` or ``bfp8-w``.
    inputs : format of the inputs, None for float32.
    sites : where inputs are rounded.
    """

    label: str
    weights: str = "fp32"
    inputs: Quantizer | None = None
    sites: tuple[str, ...] = SITES


PARTS = {
    "weights-int8": Part("weights, int8", "w8"),
    "weights-bfp8": Part("weights, BFP8", "bfp8-w"),
    "inputs-int8": Part("inputs, int8", inputs=INT8),
    "inputs-bfp8": Part("inputs, BFP8", inputs=BFP8),
    "qkv-int8": Part("input of q, k, v only, int8", inputs=INT8, sites=("qkv",)),
    "output-int8": Part("input of output only, int8", inputs=INT8, sites=("output",)),
    "up-int8": Part("input of gate, up only, int8", inputs=INT8, sites=("up",)),
    "down-int8": Part("input of down only, int8", inputs=INT8, sites=("down",)),
    "mixed": Part("weights int8, inputs block 32 exact", "w8", Quantizer(Block(32), EXACT)),
}


class Causes:
    """A float32 model whose "schemes" are `PARTS`; everything else is the model's."""

    def __init__(self, model: Model):
        self._model = model
        self.schemes = [Scheme(name) for name in PARTS]

    def __getattr__(self, name: str):
        return getattr(self._model, name)

    def with_scheme(self, scheme: Scheme) -> Model:
        """The model with one part rounded."""
        part = PARTS[scheme.name]
        base = self._model if part.weights == "fp32" else self._model.with_scheme(part.weights)
        if part.inputs is None:
            return base
        return taps.tapped(base, taps.fake_quantized(part.inputs, part.sites), scheme.name)


def rows(summaries: dict[str, dict]) -> dict[str, dict]:
    """{part: its figures with "label", and "weights": whether only weights are rounded}."""
    return {
        name: {"label": part.label, "weights": part.inputs is None, **summaries[name]}
        for name, part in PARTS.items()
        if name in summaries
    }
