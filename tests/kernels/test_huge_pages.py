"""Memory for packed matrices: arrays that share blocks, aligned, from several threads at once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cachequant as cq
from cachequant.decoder import packed
from cachequant.kernels import huge_pages, pack
from cachequant.kernels.huge_pages import HugePageMemory
from helpers import random_model


def address(array):
    return array.__array_interface__["data"][0]


def owner(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
def test_arrays_start_at_cache_lines_of_one_block(dtype):
    memory = HugePageMemory()
    rooms = [memory.room(shape, dtype) for shape in ((3, 5), (1, 1), (7, 16, 4))]
    for i, room in enumerate(rooms):
        room[...] = i
    assert [room.shape for room in rooms] == [(3, 5), (1, 1), (7, 16, 4)]
    for i, room in enumerate(rooms):
        assert room.dtype == dtype
        assert room.flags.c_contiguous
        assert address(room) % 64 == 0
        assert np.all(room == i)
    assert len({id(owner(room)) for room in rooms}) == 1
    assert address(rooms[0]) % huge_pages.HUGE_PAGE == 0


def test_a_large_array_has_a_block_of_its_own():
    memory = HugePageMemory()
    small, large = memory.room((8,), np.uint8), memory.room((huge_pages.LARGE // 4,), np.float32)
    assert owner(small) is not owner(large)
    assert address(large) % huge_pages.HUGE_PAGE == 0


def test_a_full_block_is_followed_by_another(monkeypatch):
    monkeypatch.setattr(huge_pages, "BLOCK", 256)
    memory = HugePageMemory()
    rooms = [memory.room((100,), np.uint8) for _ in range(5)]
    for i, room in enumerate(rooms):
        room[:] = i
    assert [int(room[0]) for room in rooms] == [0, 1, 2, 3, 4]
    assert len({id(owner(room)) for room in rooms}) == 3


def test_threads_get_rooms_that_do_not_overlap():
    memory = HugePageMemory()
    with ThreadPoolExecutor(8) as pool:
        rooms = list(pool.map(lambda i: memory.room((64,), np.uint8), range(4000)))
    assert len({address(room) for room in rooms}) == len(rooms)


def test_the_matrices_of_a_model_lie_side_by_side(saved, monkeypatch):
    for load in (lambda: random_model("int8+head"), lambda: cq.load(saved("gpt2"), "int8")):
        memory = HugePageMemory()
        for module in (pack, packed):
            monkeypatch.setattr(module, "MEMORY", memory)
        arrays = [part for m in load()._decoder.linears.values() for part in (m.weight.values, m.weight.scales)]
        assert len({id(owner(a)) for a in arrays if a is not None}) == 1


def test_arrays_of_a_file_are_copied_piece_by_piece(tmp_path):
    numbers = np.arange(packed._PIECE // 2, dtype=np.int32)  # two pieces
    numbers.tofile(tmp_path / "file")
    mapped = np.memmap(tmp_path / "file", np.uint8, "r").view(np.ndarray)
    copy = packed._copy(mapped, "int32", [len(numbers)])
    assert not np.shares_memory(copy, mapped)
    np.testing.assert_array_equal(copy, numbers)
