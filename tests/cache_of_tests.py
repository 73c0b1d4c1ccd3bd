"""A temporary cache folder that shows what the user's one holds and keeps what tests add away from it.

Downloads, texts and compiled kernels are the same for everybody and are shared whole. Of the other kinds, the entries
that are there are linked one by one: what a test converts, such as a tiny model, is new and goes with the folder.
"""

import tempfile
from pathlib import Path

from cachequant.assets import cachedir

SHARED = ("downloads", "texts", "kernels")
LINKED = ("models", "packed", "peers", "calibration")


def make() -> tempfile.TemporaryDirectory:
    """The folder over the cache that is in use now."""
    made = tempfile.TemporaryDirectory(prefix="cachequant-tests-", ignore_cleanup_errors=True)
    for kind in SHARED:
        (Path(made.name) / kind).symlink_to(cachedir.folder(kind), target_is_directory=True)
    for kind in LINKED:
        (Path(made.name) / kind).mkdir()
        for entry in (cachedir.root() / kind).glob("[!.]*"):
            (Path(made.name) / kind / entry.name).symlink_to(entry.resolve(), target_is_directory=entry.is_dir())
    return made
