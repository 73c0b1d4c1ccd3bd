"""Models for commands: what takes time is told on stderr."""

import sys

from cachequant.cli import output
from cachequant.errors import InputError


def resolve_model(name: str, as_json: bool, without_tokenizer: str | None = None):
    """The `ModelAsset` of a name; fetched and converted if that was not done yet.

    Parameters
    ----------
    without_tokenizer : what to say to a model that cannot read text, before its weights are made; None accepts it.
    """
    from cachequant.assets import models

    refusal = InputError(f"{name} has no tokenizer and cannot read text: {without_tokenizer}")
    if without_tokenizer and name == models.RANDOM:
        raise refusal
    with output.progress("converting the model", as_json) as report:
        asset = models.resolve(name, say=_say(as_json), progress=report)
    if without_tokenizer and asset.tokenizer is None:
        raise refusal
    return asset


def _say(as_json: bool):
    return output.note if sys.stderr.isatty() and not as_json else lambda line: None
