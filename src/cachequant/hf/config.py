"""How a transformers model is quantized: the `quantization_config` of its `config.json`."""

from collections.abc import Sequence
from typing import Any

from transformers.quantizers.auto import register_quantization_config
from transformers.utils.quantization_config import QuantizationConfigMixin

from cachequant import schemes
from cachequant.assets.hf_folder import QUANT_METHOD
from cachequant.checkpoint.layout import VERSION, require_storable
from cachequant.errors import AssetError, InputError
from cachequant.schemes import Scheme


@register_quantization_config(QUANT_METHOD)
class CacheQuantConfig(QuantizationConfigMixin):
    """Format of a model's linear layers, for `from_pretrained(..., quantization_config=...)`.

    Parameters
    ----------
    scheme : str
        Of `cachequant.schemes`, such as ``int8``, ``bfp8``, ``w8a12``, ``int8-hadamard``, ``auto``; with ``+head`` for
        a quantized output projection. ``auto`` is what it stands for on this CPU.
    head : {"int8", "int8-block32"}, optional
        Quantizes the output projection, and the embedding where they share a matrix; float32 by default.
    modules_to_not_convert : sequence of str, optional
        Modules that stay float32: full names, ends of names, or patterns, as transformers takes them. Checkpoints of
        such a model are read by transformers, not by `cachequant.load`.

    Raises
    ------
    InputError
        An unknown scheme, one that leaves all layers in float32, one that is calibrated, or an unknown argument.
    AssetError
        The `format_version` of a checkpoint is newer than this library.
    """

    def __init__(
        self,
        scheme: str = "int8",
        head: str | None = None,
        modules_to_not_convert: Sequence[str] | None = None,
        **stored: Any,
    ):
        version = stored.pop("format_version", VERSION)
        if type(version) is not int or not 1 <= version <= VERSION:
            raise AssetError(
                f"format version {version!r} of the quantization config; this library reads 1 to {VERSION}"
            )
        if stored.pop("quant_method", QUANT_METHOD) != QUANT_METHOD or stored:
            raise InputError(
                f"unknown arguments {sorted(stored)} of CacheQuantConfig; allowed: scheme, head, modules_to_not_convert"
            )
        if isinstance(modules_to_not_convert, str) or not all(
            isinstance(name, str) for name in modules_to_not_convert or ()
        ):
            raise InputError(f"modules_to_not_convert {modules_to_not_convert!r} has to be a list of names")
        chosen = schemes.get(scheme, head)
        require_storable(chosen)
        self.quant_method = QUANT_METHOD
        self.scheme = chosen.name
        self.format_version = version
        self.modules_to_not_convert = list(modules_to_not_convert or ())

    @property
    def formats(self) -> Scheme:
        """The scheme as an object."""
        return schemes.get(self.scheme)

    def to_dict(self) -> dict[str, Any]:
        """What stands in `config.json`; the same as `cachequant quantize` writes."""
        stored = {"quant_method": self.quant_method, "format_version": self.format_version, "scheme": self.scheme}
        return stored | ({"modules_to_not_convert": self.modules_to_not_convert} if self.modules_to_not_convert else {})
