"""transformers as an arm: float32, bfloat16, float16, dynamic int8, our layers; batch 1, last-position logits."""

import time
from collections.abc import Mapping
from functools import partial

import numpy as np

from cachequant.assets import names
from cachequant.decoder.config import DecoderConfig
from cachequant.study.arms import Stopped


class Transformers:
    """A model in transformers' own classes, its weights from the same asset as the other arms.

    Parameters
    ----------
    model : a model's name.
    threads : of torch.
    dtype : ``float32``, ``bfloat16`` or ``float16``.
    int8 : replace linear layers, the output projection among them, by `torch.ao`'s dynamic int8 (FBGEMM; weights with
        one scale a matrix). GPT-2's Conv1D layers are turned into linear layers first, or they would stay float32.
    scheme : put our quantized layers into the model, see `cachequant.hf.quantize_`; None leaves them.
    """

    def __init__(self, model: str, threads: int, dtype: str = "float32", int8: bool = False, scheme: str | None = None):
        import torch

        from cachequant.assets import models

        torch.set_num_threads(threads)
        self._torch = torch
        asset = models.resolve(model)
        self._model = build(asset.config, asset.weights, getattr(torch, dtype))
        if int8:
            self._model = dynamic_int8(self._model)
        if scheme:
            from cachequant import hf, kernels

            kernels.set_threads(threads)
            hf.quantize_(self._model, scheme)
        self.weight_bytes = streamed_bytes(self._model)
        self.deadline = None
        base = self._model.base_model
        for i, layer in enumerate(base.h if hasattr(base, "h") else base.layers):
            layer.register_forward_pre_hook(partial(self._check, i))

    def _check(self, done: int, *_) -> None:
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise Stopped(done, self._model.config.num_hidden_layers)

    def _forward(self, ids: list[int]):
        with self._torch.inference_mode():
            out = self._model(self._torch.tensor([ids]), cache=self._cache, use_cache=True, logits_to_keep=1)
        self._cache = out.cache
        return out.logits

    def start(self, ids: list[int]):
        self._cache = self.new_cache()
        return self._forward(ids)

    def new_cache(self):
        """The cache of keys and values that a prompt starts with; None lets transformers make its own."""
        return None

    def cache_bytes(self) -> int:
        """Bytes of the keys and values of all tokens so far."""
        layers = self._cache.layers
        return sum(tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values))

    def step(self, token: int):
        return self._forward([token])

    def choose(self, logits) -> int:
        return int(logits[0, -1].argmax())


def build(config: DecoderConfig, weights: Mapping[str, np.ndarray], dtype):
    """A transformers model in evaluation mode, from canonical float32 tensors."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    state = {}
    for name, array in weights.items():
        matrix = array.T if names.is_conv1d(config, name) else array
        state[names.hf_name(config, name)] = torch.tensor(matrix, dtype=dtype)
    fields = config.to_hf()
    hf = AutoConfig.for_model(fields.pop("model_type"), **fields)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(hf)]
    return kind.from_pretrained(None, config=hf, state_dict=state, dtype=dtype).eval()


def dynamic_int8(model):
    """Every linear layer as torch's dynamic int8, Conv1D included; the model is changed and returned."""
    import warnings

    import torch
    from transformers.pytorch_utils import Conv1D

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Conv1D):  # stores [in, out]
                linear = torch.nn.Linear(*child.weight.shape)
                linear.weight.data = child.weight.data.T.contiguous()
                linear.bias.data = child.bias.data
                setattr(module, name, linear)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao announces its successor
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def streamed_bytes(model) -> int:
    """Bytes of the matrices and vectors that one decoded token reads: all but embeddings, with the head once."""
    import torch

    total = sum(m.nbytes for m in model.modules() if hasattr(m, "in_features") and hasattr(m, "packed"))
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            continue
        total += sum(p.nbytes for p in module.parameters(recurse=False))
        if isinstance(module, torch.ao.nn.quantized.dynamic.Linear):
            weight, bias = module.weight(), module.bias()
            total += weight.numel() + (bias.nbytes if bias is not None else 0)
    return total
