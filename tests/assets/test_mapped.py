"""Pages of mapped files are given back, and read again with the same values."""

import sys

import numpy as np
import pytest

from cachequant.assets.mapped import release

SIZE = 16 << 20


def resident_file_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssFile"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_of_a_mapped_array_are_given_back(tmp_path):
    np.arange(SIZE // 4, dtype=np.int32).tofile(tmp_path / "file")
    whole = np.memmap(tmp_path / "file", np.uint8, mode="r")
    view = whole[4:-4].view(np.ndarray).view(np.int32).reshape(2, -1)
    total, before = view.sum(), resident_file_bytes()
    release(view[:1])
    assert resident_file_bytes() <= before - 0.4 * SIZE
    release(view)
    assert resident_file_bytes() <= before - 0.9 * SIZE
    assert view.sum() == total


def test_arrays_in_memory_are_left_alone():
    array = np.arange(10)
    release(array[2:])
    release(array[:0])
    assert array.sum() == 45
