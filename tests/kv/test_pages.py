"""The page pool: references, budget, zeroed memory, threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachequant.errors import CachequantError, InputError
from cachequant.kernels.slab import side_at
from cachequant.kv.pages import BudgetError, PageError, PagePool


def pool(pages=None, **shape):
    shape = {"layers": 2, "kv_heads": 3, "head_dim": 20} | shape
    bytes_ = PagePool(**shape).page_bytes
    return PagePool(**shape, budget_bytes=None if pages is None else pages * bytes_ + bytes_ // 2)


def fill(p, page, value):
    p.write(page, np.full(p.page_bytes, value, np.uint8))


def test_page_bytes_count_keys_and_values_of_all_layers():
    assert PagePool(30, 3, 64).page_bytes == 30 * 2 * 3 * 64 * 32 * 4


def test_pages_are_aligned_zeroed_and_apart():
    p = pool()
    ids = [p.acquire() for _ in range(50)]
    size = p.page_bytes // 12
    sides = sorted(side_at.py_func(p.address(i), side * size, size) for i in ids for side in range(12))
    assert all(a % 64 == 0 for a in sides)
    assert np.diff(sides).min() >= size
    for i in ids:
        assert not p.read(i).any()
        fill(p, i, i + 1)
    assert all((p.read(i) == i + 1).all() for i in ids)
    for i in ids:
        p.release(i)
    assert not any(p.read(p.acquire()).any() for _ in ids)


@pytest.mark.parametrize("shape", [(1, 1, 16), (4, 4, 64), (32, 8, 128)])
def test_content_may_be_strided(shape):
    p = PagePool(*shape)
    page, content = p.acquire(), np.random.default_rng(0).integers(0, 256, 2 * p.page_bytes, np.uint8)[::2]
    p.write(page, content)
    assert np.array_equal(p.read(page), content)


@pytest.mark.parametrize("size", [0, 64, 10**6])
def test_content_of_another_size_is_refused(size):
    p = pool()
    with pytest.raises(InputError, match=f"{size} bytes for a page of {p.page_bytes}"):
        p.write(p.acquire(), np.zeros(size, np.uint8))


@pytest.mark.parametrize("pages", [1, 3, 4, 20])
def test_a_slab_is_no_larger_than_the_ones_before_it_or_slab_bytes(pages):
    size = pool().page_bytes
    p = PagePool(2, 3, 20, slab_bytes=size + 1)
    for _ in range(pages):
        p.acquire()
    assert p.nbytes == {1: 1, 3: 4, 4: 4, 20: 24}[pages] * size


def test_pages_as_large_as_a_slab_are_given_back():
    p = PagePool(2, 3, 20, slab_bytes=pool().page_bytes)
    ids = [p.acquire() for _ in range(3)]
    held = p.nbytes
    assert held == 3 * p.page_bytes
    fill(p, ids[0], 255)
    p.release(ids[0])
    assert p.nbytes == held * 2 // 3 and not p.read(p.acquire()).any()
    assert p.nbytes == held


def test_last_release_frees():
    p = pool(1)
    page = p.acquire()
    p.retain(page)
    assert (p.references(page), p.in_use, p.free) == (2, 1, 0)
    p.release(page)
    assert (p.references(page), p.in_use, p.free) == (1, 1, 0)
    p.release(page)
    assert (p.references(page), p.in_use, p.free) == (0, 0, 1)


@pytest.mark.parametrize("use", [PagePool.release, PagePool.retain, PagePool.address])
def test_a_page_that_is_not_held_is_an_error(use):
    p = pool()
    page = p.acquire()
    p.release(page)
    other = p.acquire()  # the same memory under a new id: a stale id never reaches it
    with pytest.raises(PageError, match=f"page {page} is not held"):
        use(p, page)
    with pytest.raises(CachequantError):
        use(p, 12345)
    assert p.references(other) == 1


def test_budget():
    p = pool(3)
    pages = [p.acquire() for _ in range(3)]
    with pytest.raises(BudgetError, match="all 3 pages"):
        p.acquire()
    assert p.nbytes < 4 * p.page_bytes
    p.release(pages[1])
    p.acquire()
    with pytest.raises(BudgetError):
        p.acquire()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"layers": 0}, "layers has to be at least 1, got 0"),
        ({"head_dim": -1}, "head_dim"),
        ({"budget_bytes": 100}, "a budget of 100 bytes holds no page"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        PagePool(**({"layers": 1, "kv_heads": 1, "head_dim": 8} | arguments))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("arR"), st.integers(0, 9)), max_size=60))
def test_any_sequence_keeps_count(steps):
    p, held = pool(4), []
    for step, which in steps:
        if step == "a" and p.free:
            held.append(p.acquire())
        elif step == "a":
            with pytest.raises(BudgetError):
                p.acquire()
        elif held and step == "r":
            p.release(held.pop(which % len(held)))
        elif held:
            held.append(held[which % len(held)])
            p.retain(held[-1])
        assert p.in_use == len(set(held)) and p.in_use + p.free == 4
        assert all(p.references(i) == held.count(i) for i in held)
        assert len({p.address(i) for i in held}) == len(set(held))


def test_threads():
    p = pool(64)

    def work(seed):
        rng = np.random.default_rng(seed)
        mine = []
        for _ in range(400):
            if len(mine) < 8 and rng.random() < 0.6:
                page = p.acquire()
                assert not p.read(page).any()
                fill(p, page, seed)
                mine.append(page)
            elif mine:
                page = mine.pop(rng.integers(len(mine)))
                p.retain(page)
                assert (p.read(page) == seed).all()
                p.release(page)
                p.release(page)
        for page in mine:
            p.release(page)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(1, 9)))
    assert p.in_use == 0 and p.free == 64
