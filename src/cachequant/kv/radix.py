"""A radix tree of token strings (Morrison 1968): which stored string shares the longest prefix with a given one.

Strings are bytes of four a token. A step costs what the strings are long and does not depend on how many there are.
"""

from dataclasses import dataclass, field
from typing import Any

TOKEN = 4  # bytes


@dataclass(eq=False, slots=True)
class _Node:
    """`edge` leads here; `value` belongs to the string that ends here. All nodes have a value or two branches."""

    edge: bytes
    value: Any = None
    branches: "dict[bytes, _Node]" = field(default_factory=dict)


class RadixTree:
    """Values by token string; a value is never None."""

    __slots__ = ("_root",)

    def __init__(self):
        self._root = _Node(b"")

    def add(self, key: bytes, value: Any) -> None:
        """Store the value of a string."""
        node = self._root
        while key:
            below = node.branches.get(key[:TOKEN])
            if below is None:
                node.branches[key[:TOKEN]] = _Node(key, value)
                return
            shared = common(below.edge, key) * TOKEN
            if shared < len(below.edge):
                upper = _Node(below.edge[:shared])
                below.edge = below.edge[shared:]
                upper.branches[below.edge[:TOKEN]] = below
                node.branches[key[:TOKEN]] = below = upper
            node, key = below, key[shared:]
        node.value = value

    def discard(self, key: bytes) -> None:
        """Forget a string, if it is stored."""
        path, rest = [self._root], key
        while rest:
            node = path[-1].branches.get(rest[:TOKEN])
            if node is None or not rest.startswith(node.edge):
                return
            path.append(node)
            rest = rest[len(node.edge) :]
        node = path.pop()
        if node.value is None:
            return
        node.value = None
        if not node.branches:
            del path[-1].branches[node.edge[:TOKEN]]
            node = path.pop()
        if node is not self._root and node.value is None and len(node.branches) == 1:
            (below,) = node.branches.values()
            node.edge, node.value, node.branches = node.edge + below.edge, below.value, below.branches

    def longest(self, key: bytes) -> tuple[Any, int]:
        """Value of a string that shares the most tokens with `key`, and how many; (None, 0) if none shares any."""
        node, rest = self._root, key
        while rest and (below := node.branches.get(rest[:TOKEN])):
            shared = common(below.edge, rest) * TOKEN
            node, rest = below, rest[shared:]
            if shared < len(below.edge):
                break
        if node is self._root:
            return None, 0
        while node.value is None:
            node = next(iter(node.branches.values()))
        return node.value, (len(key) - len(rest)) // TOKEN

    def beginnings(self, key: bytes) -> list[Any]:
        """Values of the stored strings that `key` begins with, itself included."""
        node, found = self._root, []
        while key and (node := node.branches.get(key[:TOKEN])) and key.startswith(node.edge):
            key = key[len(node.edge) :]
            if node.value is not None:
                found.append(node.value)
        return found


def common(a: bytes, b: bytes) -> int:
    """How many tokens two strings share at their beginning."""
    n = min(len(a), len(b))
    differing = int.from_bytes(a[:n]) ^ int.from_bytes(b[:n])
    return (n * 8 - differing.bit_length()) // (8 * TOKEN)
