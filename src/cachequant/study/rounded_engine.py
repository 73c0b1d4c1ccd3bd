"""transformers with linear layers that round their weights and inputs to codes and back, products through torch."""

from collections.abc import Sequence

import numpy as np
import torch

from cachequant import schemes
from cachequant.assets import names
from cachequant.assets.store import ModelAsset
from cachequant.errors import InputError
from cachequant.quantize import dequantize, quantize
from cachequant.schemes import Quantizer, Scheme
from cachequant.study import chunking, torch_engine


class RoundedLinear(torch.nn.Module):
    """`x @ W.T + b` with x rounded to `activation` (None: not at all), in the precision of W."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: Quantizer | None):
        super().__init__()
        self.weight, self.bias, self._activation = weight, bias, activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if self._activation:
            rows = torch.from_numpy(dequantize(quantize(rows.numpy(), self._activation)))
        out = torch.nn.functional.linear(rows.to(self.weight.dtype), self.weight, self.bias)
        return out.to(x.dtype).reshape(*x.shape[:-1], -1)


class Rounded:
    """A float32 model of transformers whose blocks take the number formats of a scheme.

    Parameters
    ----------
    asset : the model; its head stays in float32.
    threads : of torch.
    """

    def __init__(self, asset: ModelAsset, threads: int):
        torch.set_num_threads(threads)
        self._weights = asset.weights
        self._model = torch_engine.build(asset.config, asset.weights, torch.float32)
        matrices = [n for n, w in asset.weights.items() if n.startswith("layers.") and w.ndim == 2]
        self._places = {n: names.hf_name(asset.config, n).removesuffix(".weight") for n in matrices}

    def use(self, scheme: str | Scheme, products: str = "float32") -> None:
        """Take a scheme.

        Parameters
        ----------
        scheme : without a transform of its inputs.
        products : precision of the products of rounded values. In ``float64`` their sums are as good as exact, as those
            of integer kernels are, so that the order of adding up shows in no bit of the float32 result.

        Raises
        ------
        InputError : another precision, a scheme with a transform.
        """
        chunking.check([scheme], [], [products])
        scheme = schemes.get(scheme)
        if scheme.transform:
            raise InputError(f"scheme {scheme.name!r} transforms its inputs: give one that only rounds them")
        for name, place in self._places.items():
            weight, bias = self._weights[name], self._weights.get(name.removesuffix("weight") + "bias")
            if scheme.weight:
                weight = dequantize(quantize(weight, scheme.weight))
            tensors = [None if t is None else torch.tensor(t, dtype=getattr(torch, products)) for t in (weight, bias)]
            self._model.set_submodule(place, RoundedLinear(*tensors, scheme.activation))

    def logits(self, parts: Sequence[Sequence[int]]) -> np.ndarray:
        """(V,) logits of the last token after running token ids part by part."""
        cache = None
        with torch.inference_mode():
            for part in parts:
                out = self._model(torch.tensor([list(part)]), cache=cache, use_cache=True, logits_to_keep=1)
                cache = out.cache
        return out.logits[0, -1].numpy()
