"""Pages in interleaved slabs: where their sides are, and what goes in and out."""

import numpy as np
import pytest

from cachequant.kernels import slab
from cachequant.kernels.huge_pages import aligned

SIZES = np.array([64, 192, 64, 128, 320])


@pytest.fixture(params=[1, 2, 4, 8])
def pages(request):
    memory = aligned(request.param * SIZES.sum(), slab.ALIGN)
    memory[:] = 255
    return memory, [slab.number(memory.ctypes.data, i, request.param) for i in range(request.param)]


def test_a_side_of_all_pages_is_one_piece(pages):
    memory, numbers = pages
    place, offset = memory.ctypes.data, 0
    for size in SIZES:
        for number in numbers:
            assert slab.side_at.py_func(number, offset, size) == place
            place += size
        offset += size
    assert place == memory.ctypes.data + memory.size


def test_what_is_written_is_read(pages):
    memory, numbers = pages
    contents = np.random.default_rng(0).integers(0, 256, (len(numbers), SIZES.sum()), np.uint8)
    contents.flags.writeable = False  # as those of a mapped file
    for number, content in zip(numbers, contents, strict=True):
        slab.write(number, SIZES, content)
    for number, content in zip(numbers, contents, strict=True):
        assert (slab.read(number, SIZES) == content).all()
        assert (slab.read(number, SIZES, 1, 3) == content[64:320]).all()
    rows = np.empty((len(numbers), SIZES.sum()), np.uint8)
    assert all(slab.read(n, SIZES, out=row) is row for n, row in zip(numbers, rows, strict=True))
    assert (rows == contents).all()
    slab.clear(numbers[0], SIZES)
    assert not slab.read(numbers[0], SIZES).any()
    assert all((slab.read(n, SIZES) == c).all() for n, c in zip(numbers[1:], contents[1:], strict=True))


def test_a_page_alone_is_known_by_its_address(pages):
    memory, _ = pages
    assert slab.number(memory.ctypes.data, 0, 1) == memory.ctypes.data
