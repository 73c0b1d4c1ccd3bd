"""The tree of cached pages (RadixAttention: Zheng et al. 2024, section 3); the least recently used ones go first.

A node is a page and the token ids in it: 32 of them, or fewer at a leaf. A page is found by its ids, which are
compared, on the path from the root, since keys and values depend on every token before them.

Sessions hold pages from the root on and give them back from the end, so the pages that nobody holds, in the order in
which they were given back (`shelf`), never have a page before those that follow it: the first one is always a leaf that
has not been used for the longest time, and evicting it is O(1).
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from cachequant.kv.pages import PAGE, PagePool
from cachequant.kv.radix import TOKEN, RadixTree

KEY = PAGE * TOKEN  # bytes of the ids of a full page


class Node:
    """A page in the tree; `key` is the ids in it."""

    __slots__ = ("parent", "key", "page", "children", "partial")

    def __init__(self, parent: "Node | None", key: bytes, page: int):
        self.parent, self.key, self.page = parent, key, page
        self.children: dict[bytes, Node] = {}
        self.partial = RadixTree()  # the children of which a part can be used


class PageTree:
    """Pages by the token ids that they hold and follow. The pool's lock has to be held by the caller.

    Parameters
    ----------
    pool : of the pages.
    capacity : most bytes of pages in the tree; None for no limit.
    """

    def __init__(self, pool: PagePool, capacity: int | None):
        self._pool, self.capacity = pool, capacity
        self._root = Node(None, b"", -1)
        self._nodes: dict[int, Node] = {}
        self._shelf: OrderedDict[int, None] = OrderedDict()
        self.inserted = self.evicted = 0  # pages, since the beginning
        self.nbytes = self.inserted_bytes = 0  # of the pages in the tree, and of all inserted since the beginning
        self.touched = 0  # nodes looked at, since the beginning

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def evictable(self) -> int:
        """Pages that no session holds."""
        self._pool.collect()
        return len(self._shelf)

    def match(self, ids: Sequence[int]) -> tuple[list[int], int]:
        """Pages that hold the longest known prefix of `ids`, and how many tokens of it; the last page may hold others
        behind them."""
        key = encode(ids)
        path = self._path(key)
        pages, node = [n.page for n in path], path[-1] if path else self._root
        donor, rows = node.partial.longest(key[len(path) * KEY :][:KEY])
        if rows:
            self.touched += 1
            pages.append(donor.page)
        return pages, len(path) * PAGE + rows

    def path(self, ids: Sequence[int] | bytes) -> list[int]:
        """The full pages at the beginning of `ids` that are in the tree."""
        return [node.page for node in self._path(encode(ids))]

    def insert(self, ids: Sequence[int] | bytes, pages: Sequence[int]) -> None:
        """Store pages that hold `ids`, as far as the capacity allows.

        The caller holds `pages`, which begin with those of `path(ids)`: while it does, none of them is evicted.
        """
        key, node = encode(ids), self._root
        for i in range(-(-len(key) // KEY)):
            piece = key[i * KEY : (i + 1) * KEY]
            child = node.children.get(piece)
            self.touched += 1
            if child is None:
                if len(piece) < KEY and node.partial.longest(piece)[1] * TOKEN == len(piece):
                    return  # the rows are in another page already
                self._replace(node, piece)
                if not self._make_room(self._pool.size(pages[i])):
                    return
                child = self._add(node, piece, pages[i], i)
            node = child

    def evict(self) -> bool:
        """Give back the page that was not used for the longest time; False if sessions hold all of them."""
        if not self.evictable:
            return False
        node = self._nodes[next(iter(self._shelf))]
        self._remove(node)
        self.evicted += 1
        return True

    def walk(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Token ids from the root, and page, of every node."""
        waiting = [((), node) for node in self._root.children.values()]
        while waiting:
            before, node = waiting.pop()
            ids = before + tuple(np.frombuffer(node.key, ">u4").tolist())
            waiting.extend((ids, child) for child in node.children.values())
            yield ids, node.page

    def _path(self, key: bytes) -> list[Node]:
        path, node = [], self._root
        for at in range(0, len(key) - KEY + 1, KEY):
            self.touched += 1
            node = node.children.get(key[at : at + KEY])
            if node is None:
                break
            path.append(node)
        return path

    def _replace(self, parent: Node, key: bytes) -> None:
        """Remove the leaves that `key` makes needless, because it begins with all of their ids."""
        for leaf in parent.partial.beginnings(key):
            if leaf.page in self._shelf:
                self._remove(leaf)

    def _make_room(self, size: int) -> bool:
        while self.capacity is not None and self.nbytes + size > self.capacity:
            if not self.evict():
                return False
        return True

    def _add(self, parent: Node, key: bytes, page: int, index: int) -> Node:
        self._pool.shelve(page, self._shelf)
        self.nbytes += self._pool.size(page)
        node = parent.children[key] = self._nodes[page] = Node(parent, key, page)
        if len(key) < KEY or self._pool.divisible(index):
            parent.partial.add(key, node)
        self.inserted += 1
        self.inserted_bytes += self._pool.size(page)
        return node

    def _remove(self, node: Node) -> None:
        assert not node.children, "a page that others follow is never given back before them"
        self.touched += 1
        del node.parent.children[node.key], self._nodes[node.page]
        node.parent.partial.discard(node.key)
        self.nbytes -= self._pool.size(node.page)
        self._pool.unshelve(node.page)


def encode(ids: Sequence[int] | bytes) -> bytes:
    """Token ids as the bytes that keys are cut from; bytes as they are, so that ids are encoded once."""
    return ids if isinstance(ids, bytes) else np.asarray(ids, ">u4").tobytes()
