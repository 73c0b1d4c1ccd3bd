"""Memory for packed matrices: copies that share blocks, aligned, and no copy of what is large already."""

import numpy as np
import pytest

import cachequant as cq
from cachequant.decoder import huge_pages
from cachequant.decoder.huge_pages import HugePageMemory
from helpers import random_model


def address(array):
    return array.__array_interface__["data"][0]


def owner(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
def test_copies_keep_type_shape_and_values(dtype, rng):
    place, arrays = (
        HugePageMemory(),
        [rng.integers(-99, 99, shape).astype(dtype) for shape in ((3, 5), (1, 1), (7, 16, 4))],
    )
    copies = [place.take(a) for a in arrays]
    for array, copy in zip(arrays, copies, strict=True):
        assert copy.dtype == dtype
        assert address(copy) % 64 == 0
        np.testing.assert_array_equal(array, copy)
    assert len({id(owner(c)) for c in copies}) == 1
    assert address(copies[0]) % huge_pages.HUGE_PAGE == 0


def test_large_arrays_stay_and_mapped_ones_are_copied(tmp_path):
    large = np.zeros(huge_pages.LARGE, np.uint8)
    assert HugePageMemory().take(large) is large
    file = tmp_path / "file"
    np.arange(huge_pages.LARGE // 2, dtype=np.int32).tofile(file)
    mapped = np.memmap(file, np.int32, "r").view(np.ndarray)
    copy = HugePageMemory().take(mapped, mapped=True)
    assert not np.shares_memory(copy, mapped)
    np.testing.assert_array_equal(copy, mapped)
    assert HugePageMemory().take(None) is None


def test_a_full_block_is_followed_by_another(monkeypatch):
    monkeypatch.setattr(huge_pages, "BLOCK", 256)
    place = HugePageMemory()
    copies = [place.take(np.full(100, i, np.uint8)) for i in range(5)]
    assert [int(c[0]) for c in copies] == [0, 1, 2, 3, 4]
    assert len({id(owner(c)) for c in copies}) == 3


def test_the_matrices_of_a_model_lie_side_by_side(saved):
    for model in (random_model("int8+head"), cq.load(saved("gpt2"), "int8")):
        arrays = [part for m in model._decoder.linears.values() for part in (m.weight.values, m.weight.scales)]
        assert len({id(owner(a)) for a in arrays if a is not None}) == 1
