"""The quantizer that transformers calls from `from_pretrained` and `save_pretrained`."""

from pathlib import Path
from typing import Any

import torch
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name
from transformers.utils import logging

from cachequant.assets.hf_folder import QUANT_METHOD
from cachequant.errors import CachequantError, InputError
from cachequant.hf import files
from cachequant.hf.config import CacheQuantConfig
from cachequant.hf.layers import SharedHead, _Quantized
from cachequant.hf.replace import as_rows, plan, tie, untie

logger = logging.get_logger(__name__)


class _QuantizeOnLoad(ConversionOps):
    """Turns a float matrix into codes as soon as it is read."""

    def __init__(self, quantizer: "CacheQuantizer"):
        self.quantizer = quantizer

    def convert(self, input_dict, model=None, full_layer_name=None, missing_keys=None, **_) -> dict:
        (found,) = input_dict.values()
        module, _ = get_module_from_name(model, full_layer_name)
        weight = found[0] if isinstance(found, list) else found
        self.quantizer.accept(module, full_layer_name, weight)
        missing_keys.discard(full_layer_name)
        return {}


@register_quantizer(QUANT_METHOD)
class CacheQuantizer(HfQuantizer):
    """Quantizes on load, loads what is quantized already, and saves.

    A model that is saved holds the tensors, bit for bit, and the note of a checkpoint of `cachequant quantize`; either
    loads in transformers and in `cachequant.load`.
    """

    requires_calibration = False

    def __init__(self, quantization_config: CacheQuantConfig, **options: Any):
        super().__init__(quantization_config, **options)
        self._note: dict[str, Any] | None = None
        self._turned: set[str] = set()  # layers whose float matrix is stored as (in, out)
        self._failure: CachequantError | None = None

    def validate_environment(self, *args, device_map=None, **options) -> None:
        """Refuse devices other than the CPU."""
        devices = device_map.values() if isinstance(device_map, dict) else [device_map]
        for device in devices:
            if device is not None and str(device) not in ("cpu", "auto"):
                raise InputError(f"device_map {device_map!r}: cachequant's layers run on the CPU; allowed: 'cpu'")

    def update_device_map(self, device_map):
        """The CPU, where anything was asked for."""
        return None if device_map is None else {"": "cpu"}

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """float32, whatever the checkpoint or the caller has: the layers take nothing else."""
        if dtype != torch.float32:
            logger.warning_once(f"cachequant's layers run in torch.float32; dtype={dtype} is not used")
        return torch.float32

    def _process_model_before_weight_loading(self, model, checkpoint_files=None, **options) -> None:
        made = plan(model, self.quantization_config)
        for name, (old, module) in made.items():
            if not isinstance(module, SharedHead):
                module.await_weights(None if self.pre_quantized else tuple(old.weight.shape))
                if as_rows(old) is not old.weight:
                    self._turned.add(name)
            model.set_submodule(name, module)
        untie(model, made)
        if self.pre_quantized:
            self._note = files.check(checkpoint_files, model, self.quantization_config)

    def param_needs_quantization(self, model, param_name: str, **options) -> bool:
        """Whether a tensor of the checkpoint is the float matrix of a quantized layer."""
        module, kind = get_module_from_name(model, param_name)
        return isinstance(module, _Quantized) and kind == "weight" and not self.pre_quantized

    def get_quantize_ops(self) -> ConversionOps:
        """What transformers applies to such a tensor."""
        return _QuantizeOnLoad(self)

    def accept(self, module: _Quantized, key: str, weight: torch.Tensor) -> None:
        """Quantize a layer. transformers swallows errors here: the first one waits until the model is done."""
        name = key.removesuffix(".weight")
        try:
            expected = (module.k, module.n) if name in self._turned else (module.n, module.k)
            if tuple(weight.shape) != expected:
                raise InputError(f"{key} has shape {tuple(weight.shape)}, the model needs {expected}")
            module.quantize(weight.T if name in self._turned else weight)
        except CachequantError as error:
            self._failure = self._failure or type(error)(f"{key}: {error}")

    def _process_model_after_weight_loading(self, model, **options):
        if self._failure:
            raise self._failure
        layers = {name: module for name, module in model.named_modules() if isinstance(module, _Quantized)}
        for name, module in layers.items():
            if not isinstance(module, SharedHead):
                module.finish(name)
        tie(list(layers.values()))
        return model

    def adopt(self, model) -> None:
        """What `from_pretrained` leaves on a model that it has quantized."""
        model.is_quantized, model.quantization_method = True, QUANT_METHOD
        model.hf_quantizer = self
        model.config.quantization_config = self.quantization_config
        model.config._is_quantized = True

    def get_state_dict_and_metadata(self, model) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Tensors of a checkpoint, and its note for the metadata of every file."""
        state = {n: t for n, t in model.state_dict().items() if n not in model.all_tied_weights_keys}
        return state, files.metadata(state, self.quantization_config.formats, self._source(model))

    def _source(self, model) -> dict[str, Any]:
        if self._note is not None:
            return {"random": self._note["random"], **self._note["source"]}
        name = model.config.name_or_path
        return {"name": Path(name).name if Path(name).exists() else name or type(model).__name__}

    def is_serializable(self) -> bool:
        """Yes."""
        return True

    @property
    def is_trainable(self) -> bool:
        """No: codes have no gradients."""
        return False

    @property
    def is_compileable(self) -> bool:
        """Yes: the layers are operators of torch."""
        return True
