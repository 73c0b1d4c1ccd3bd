"""`python -m cachequant.assets`: fetch and convert what needs no hub, so that later commands start at once."""

import sys
import time

from tqdm import tqdm

from cachequant.assets import cachedir, models, store, texts
from cachequant.errors import CachequantError


def main() -> int:
    """Exit code 0 when all embedded assets are ready, 2 with a message otherwise."""
    start = time.monotonic()
    try:
        with tqdm(unit="tensor", disable=None, leave=False) as bar:
            asset = models.resolve(models.DEFAULT, say=_say, progress=lambda done, total: _advance(bar, done, total))
        store.verify(asset.sha256)
        texts.resolve("enwiki", say=_say)
    except CachequantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size = sum(entry.bytes for entry in cachedir.entries()) / 1e6
    print(f"assets ready in {cachedir.root()} ({size:.0f} MB, {time.monotonic() - start:.0f} s)")
    return 0


def _advance(bar: tqdm, done: int, total: int) -> None:
    bar.total = total
    bar.update(done - bar.n)


def _say(line: str) -> None:
    tqdm.write(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
