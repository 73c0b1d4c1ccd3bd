"""Typed errors. Each message names the bad value and what is allowed; the command line turns them into exit code 2."""


class CachequantError(Exception):
    """Base of every error that cachequant raises on purpose."""


class InputError(CachequantError, ValueError):
    """An argument that cannot be used: an empty prompt, an unknown scheme, a length that does not fit."""


class AssetError(CachequantError, OSError):
    """A model or text that is missing, truncated, or not what its hash says."""


class ConfigError(CachequantError, ValueError):
    """A model configuration with a field that the decoder does not handle."""


class NumericsError(CachequantError, ArithmeticError):
    """Non-finite weights or logits."""


class ParameterError(CachequantError, ValueError):
    """A notebook parameter that is unknown or has the wrong type."""


class ResultError(CachequantError, ValueError):
    """A result file that is missing or does not follow the schema."""
