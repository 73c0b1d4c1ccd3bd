"""Models and texts for commands: what takes time is told on stderr."""

import sys

from cachequant.cli import output


def resolve_model(name: str, as_json: bool):
    """The `ModelAsset` of a name; fetched and converted if that was not done yet."""
    from cachequant.assets import models

    with output.progress("converting the model", as_json) as report:
        return models.resolve(name, say=_say(as_json), progress=report)


def _say(as_json: bool):
    return output.note if sys.stderr.isatty() and not as_json else lambda line: None
