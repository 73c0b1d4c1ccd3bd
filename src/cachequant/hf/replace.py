"""Which modules of a transformers model become quantized layers, and quantizing a model in place."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.quantizers_utils import should_convert_module

from cachequant.decoder.linear import head_inputs
from cachequant.decoder.weights import check_finite
from cachequant.errors import InputError
from cachequant.hf.config import CacheQuantConfig
from cachequant.hf.layers import LayerFormat, QuantizedEmbedding, QuantizedLinear, SharedHead
from cachequant.schemes import Scheme

Made = dict[str, tuple[nn.Module, nn.Module]]  # name: (float module, quantized module)


def plan(model: PreTrainedModel, config: CacheQuantConfig) -> Made:
    """The quantized modules that take the place of others, in the model's order; the model is not changed.

    Linear layers (`Linear`, `Conv1D`) below the base model become codes under the scheme's weight format, the output
    projection under its head format. A head that is tied to the embedding shares the embedding's codes.

    Raises
    ------
    InputError
        Nothing to quantize, inputs that the scheme's rotation does not fit, or an embedding that cannot be codes.
    """
    scheme, kept, base, made = config.formats, config.modules_to_not_convert, model.base_model, {}
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    names = {id(module): name for name, module in model.named_modules()}
    form = LayerFormat(scheme.weight, scheme.activation, scheme.transform)
    for module in base.modules():
        name = names[id(module)]
        if module is not head and type(module) in (nn.Linear, Conv1D) and should_convert_module(name, kept):
            made[name] = module, QuantizedLinear(*_shape(module), form, module.bias is not None)
    if not made:
        raise InputError(f"{type(model).__name__} has no Linear or Conv1D to quantize, beside {kept}")
    if scheme.head and (head is None or should_convert_module(names[id(head)], kept)):
        made |= _head(model, scheme, names, head, embedding)
    return made


def _head(
    model: PreTrainedModel, scheme: Scheme, names: dict[int, str], head: nn.Module | None, embedding: nn.Module
) -> Made:
    form = LayerFormat(scheme.head, head_inputs(scheme))
    if head is None:  # a model without one, whose embedding is codes where a head would share it
        tied = model.config.get_text_config().tie_word_embeddings
        return {names[id(embedding)]: (embedding, QuantizedEmbedding(*embedding.weight.shape, form))} if tied else {}
    name = names[id(head)]
    if f"{name}.weight" not in model.all_tied_weights_keys:
        return {name: (head, QuantizedLinear(*_shape(head), form, head.bias is not None))}
    if type(embedding) is not nn.Embedding or head.bias is not None:
        raise InputError(
            f"a quantized head shares the codes of {names[id(embedding)]}, a {type(embedding).__name__}; allowed: a "
            "plain Embedding, tied to a head without bias"
        )
    shared = QuantizedEmbedding(*embedding.weight.shape, form)
    return {names[id(embedding)]: (embedding, shared), name: (head, SharedHead(*embedding.weight.shape, form))}


def untie(model: PreTrainedModel, made: Made) -> None:
    """Take a head that is codes out of transformers' own tying, which knows single tensors only."""
    for name, (_, module) in made.items():
        if isinstance(module, SharedHead):
            model.all_tied_weights_keys.pop(f"{name}.weight")


def tie(made: Sequence[nn.Module]) -> None:
    """Let the shared head, if there is one, use the embedding's codes."""
    embeddings = [module for module in made if isinstance(module, QuantizedEmbedding)]
    for head in (module for module in made if isinstance(module, SharedHead)):
        head.share(embeddings[0].packed)


def as_rows(module: nn.Module) -> torch.Tensor:
    """The weight of a float module as (out, in)."""
    return module.weight.T if isinstance(module, Conv1D) else module.weight


def _shape(module: nn.Module) -> tuple[int, int]:
    return tuple(as_rows(module).shape)


def quantize_(
    model: PreTrainedModel,
    scheme: str = "int8",
    head: str | None = None,
    modules_to_not_convert: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PreTrainedModel:
    """Quantize a model that is loaded, in place, one layer at a time.

    Parameters
    ----------
    model : PreTrainedModel
        In float32 on the CPU. It is put into evaluation mode.
    scheme, head, modules_to_not_convert
        As in `CacheQuantConfig`.
    progress : callable, optional
        Called with the layers done and to do.

    Returns
    -------
    PreTrainedModel
        The same model; `save_pretrained` writes a checkpoint that transformers and `cachequant.load` read.

    Raises
    ------
    InputError
        Not such a model, quantized already, or a scheme that does not fit it.
    NumericsError
        A weight that is NaN or infinite. In either case nothing was changed.
    """
    from cachequant.hf.quantizer import CacheQuantizer

    if not isinstance(model, PreTrainedModel):
        raise InputError(f"quantize_ got a {type(model).__name__}; allowed: a transformers model")
    if getattr(model, "hf_quantizer", None) is not None:
        raise InputError(f"{type(model).__name__} is quantized already, by {model.hf_quantizer.quantization_config}")
    for name, tensor in model.named_parameters():
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise InputError(f"{name} is {tensor.dtype} on {tensor.device}; allowed: torch.float32 on the CPU")
    config = CacheQuantConfig(scheme, head, modules_to_not_convert)
    made = plan(model, config)
    for name, (old, module) in made.items():
        if not isinstance(module, SharedHead):
            check_finite(f"{name}.weight", old.weight.detach().numpy(), type(model).__name__)
    untie(model, made)
    total = len(made)
    layers = [module for _, module in made.values()]
    for done, name in enumerate(list(made), 1):
        old, module = made.pop(name)  # so that the float weights end here
        if not isinstance(module, SharedHead):
            if module.bias is not None:
                module.bias = old.bias.detach()
            module.quantize(as_rows(old))
        model.set_submodule(name, module)
        del old
        if progress:
            progress(done, total)
    tie(layers)
    CacheQuantizer(config, pre_quantized=False).adopt(model)
    return model.eval()
