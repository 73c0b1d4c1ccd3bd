"""The page tree: order of eviction, collisions, needless leaves, and its cost in nodes."""

from collections import OrderedDict

import numpy as np
import pytest

from cachequant.kv import tree as module
from cachequant.kv.pages import PAGE, PagePool
from cachequant.kv.tree import PageTree

rng = np.random.default_rng(5)


class Holder:
    """Pages as a session holds them."""

    def __init__(self, pool, ids, tree):
        self.pool, self.ids = pool, list(ids)
        self.pages = tree.path(ids)
        for page in self.pages:
            pool.retain(page)
        self.pages += [pool.acquire() for _ in range(len(self.pages), -(-len(ids) // PAGE))]
        tree.insert(self.ids, self.pages)

    def close(self):
        while self.pages:
            self.pool.release(self.pages.pop())


@pytest.fixture
def pool():
    return PagePool(1, 1, 1)


def store(pool, tree, ids):
    Holder(pool, ids, tree).close()


def strings(tree):
    return {ids for ids, _ in tree.walk()}


def test_the_page_not_used_for_the_longest_time_goes_first_and_leaves_before_their_parents(pool):
    tree, shared = PageTree(pool, None), list(range(32))
    a, b, c = shared + [1] * 32, shared + [2] * 32 + [3] * 32, [9] * 32
    for ids in (a, b, c):
        store(pool, tree, ids)
    store(pool, tree, a)  # used again
    for gone in (b, b[:64], c, a, shared):
        before = strings(tree)
        assert tree.evict()
        assert before - strings(tree) == {tuple(gone)}
    assert not tree.evict()
    assert pool.in_use == 0
    assert tree.evicted == 5


def test_pages_in_use_and_what_leads_to_them_stay(pool):
    tree = PageTree(pool, 3 * pool.page_bytes)
    holder = Holder(pool, [1] * 70, tree)
    assert not tree.evict()
    store(pool, tree, [2] * 40)
    assert strings(tree) == {(1,) * 32, (1,) * 64, (1,) * 70}
    holder.close()
    store(pool, tree, [2] * 40)
    assert strings(tree) == {(1,) * 32, (2,) * 32, (2,) * 40}


def test_a_longer_leaf_replaces_those_that_it_begins_with(pool):
    tree = PageTree(pool, None)
    for length in (3, 9, 32, 20):
        store(pool, tree, [4] * length)
    assert strings(tree) == {(4,) * 32}
    assert (pool.in_use, tree.evicted) == (1, 0)


def test_a_leaf_in_use_is_not_replaced(pool):
    tree = PageTree(pool, None)
    holder = Holder(pool, [4] * 3, tree)
    store(pool, tree, [4] * 9)
    assert strings(tree) == {(4,) * 3, (4,) * 9}
    holder.close()
    store(pool, tree, [4] * 10)
    assert strings(tree) == {(4,) * 10}


def test_hash_collisions_do_not_match(pool, monkeypatch):
    class Key(bytes):
        def __hash__(self):
            return 1

        __eq__ = bytes.__eq__

    class Colliding(OrderedDict):
        def get(self, key):
            return super().get(Key(key))

        def __setitem__(self, key, value):
            super().__setitem__(Key(key), value)

        def __delitem__(self, key):
            super().__delitem__(Key(key))

    class Node(module.Node):
        __slots__ = ()

        def __init__(self, *given):
            super().__init__(*given)
            self.children = Colliding()

    monkeypatch.setattr(module, "Node", Node)
    tree = PageTree(pool, None)
    prompts = [[i] * 64 for i in range(8)]
    for ids in prompts:
        store(pool, tree, ids)
    for i, ids in enumerate(prompts):
        assert tree.match(ids) == (tree.path(ids), 64)
        assert tree.match([i] * 32 + [50] * 32)[1] == 32
    assert tree.match([99] * 64) == ([], 0)
    assert len(set(sum((tree.path(ids) for ids in prompts), []))) == 16


@pytest.mark.parametrize("wide", [True, False], ids=["one parent", "chains"])
def test_nodes_touched_by_an_insert_with_eviction_do_not_depend_on_the_size(wide):
    costs = {}
    for size in (1_000, 10_000, 100_000):
        pool = PagePool(1, 1, 1)
        tree = PageTree(pool, size * pool.page_bytes)
        length = PAGE if wide else 4 * PAGE
        fresh = lambda length=length: rng.integers(0, 1 << 31, length)  # noqa: E731
        for _ in range(size * PAGE // length):
            store(pool, tree, fresh())
        assert len(tree) == size
        before, evicted = tree.touched, tree.evicted
        for _ in range(50):
            store(pool, tree, fresh())
        costs[size] = tree.touched - before
        assert tree.evicted - evicted == 50 * length // PAGE
    assert len(set(costs.values())) == 1
    assert costs[1_000] <= 50 * (1 + 2 * length // PAGE + 1)
