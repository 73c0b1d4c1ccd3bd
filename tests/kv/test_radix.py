"""The radix tree against comparing with every stored string."""

from hypothesis import given
from hypothesis import strategies as st

from cachequant.kv.radix import RadixTree
from cachequant.kv.tree import encode

STRINGS = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(encode)


def shared(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n : n + 4] == b[n : n + 4]:
        n += 4
    return n // 4


@given(st.lists(st.tuples(st.booleans(), STRINGS), max_size=40), STRINGS)
def test_longest_and_beginnings_equal_a_search(steps, query):
    tree, stored = RadixTree(), set()
    for add, key in steps:
        if add:
            tree.add(key, key)
            stored.add(key)
        else:
            tree.discard(key)
            stored.discard(key)
        best = max((shared(query, s) for s in stored), default=0)
        value, tokens = tree.longest(query)
        assert tokens == best
        assert (value is None) == (best == 0)
        assert value is None or (value in stored and shared(value, query) == best)
        assert tree.beginnings(query) == sorted((s for s in stored if query.startswith(s)), key=len)


def test_ids_above_one_byte_are_kept_apart():
    tree = RadixTree()
    tree.add(encode([1, 256, 3]), "a")
    assert tree.longest(encode([1, 1, 3])) == ("a", 1)
    assert tree.longest(encode([1, 256, 4])) == ("a", 2)
    assert tree.longest(encode([256])) == (None, 0)
