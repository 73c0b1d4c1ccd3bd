"""WikiText-2 (Merity et al. 2016, arXiv 1609.07843): found on disk or on the hub, always the same bytes.

The splits are checked against the sha256 of the files of the original archive, from which the hub's rows are
reassembled: a blank row is `""` there and a space with a newline in the file.
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cachequant.assets import cachedir, hub
from cachequant.assets.hashing import require_sha256, sha256_bytes
from cachequant.assets.pins import WIKITEXT, WIKITEXT_REPOSITORY, WIKITEXT_SUBSET
from cachequant.errors import AssetError

_CHOICES = (
    "CACHEQUANT_WIKITEXT naming the folder that holds wiki.test.raw and wiki.valid.raw, the embedded text enwiki, "
    "or the path of a text file"
)


def read_split(split: str) -> str:
    """The raw file of a split: from CACHEQUANT_WIKITEXT, else the cache folder, else the hub.

    Parameters
    ----------
    split : {"test", "valid"}

    Raises
    ------
    AssetError
        The file is nowhere to be had (the message names the choices), or its hash is not the pinned one.
    """
    file, sha256, _ = WIKITEXT[split]
    chosen = os.environ.get("CACHEQUANT_WIKITEXT")
    if chosen:
        path = Path(chosen).expanduser() / file
        if not path.is_file():
            raise AssetError(f"CACHEQUANT_WIKITEXT is {chosen!r}, which holds no {file}. Choices: {_CHOICES}")
        return _read(path, sha256)
    path = cachedir.root() / "texts" / file
    if path.is_file():
        return _read(path, sha256)
    raw = join_raw(_hub_rows(split)).encode("utf-8")
    require_sha256(sha256_bytes(raw), sha256, f"{split} of {WIKITEXT_REPOSITORY}")
    with cachedir.atomic_file(path) as partial:
        partial.write_bytes(raw)
    return raw.decode("utf-8")


def rows(raw: str) -> list[str]:
    """The rows of the hub's dataset from a raw file."""
    lines = raw.removesuffix("\n").split("\n")  # not splitlines, which also cuts at other Unicode line ends
    return ["" if line == " " else line + "\n" for line in lines]


def join_raw(rows: Iterable[str]) -> str:
    """The raw file from the rows of the hub's dataset."""
    return "".join(row or " \n" for row in rows)


def _read(path: Path, sha256: str) -> str:
    data = path.read_bytes()
    require_sha256(sha256_bytes(data), sha256, str(path))
    return data.decode("utf-8")


def _hub_rows(split: str) -> list[str]:
    pattern = f"{WIKITEXT_SUBSET}/{WIKITEXT[split][2]}-*.parquet"
    folder = hub.snapshot(
        WIKITEXT_REPOSITORY,
        None,
        "dataset",
        wanted=lambda files: [pattern],
        complete=lambda files: any(Path(file).match(pattern) for file in files),
        choices=_CHOICES,
    )
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as scratch:  # the rows are kept as one checked file, not in the datasets cache
        table = datasets.Dataset.from_parquet(sorted(map(str, folder.glob(pattern))), cache_dir=scratch)
        return list(table["text"])
