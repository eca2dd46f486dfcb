"""Merkle trees over rows, built from the left in logarithmic memory.

The shape is that of RFC 6962: a tree of n leaves is split at the largest power of two below n.
So a root depends on the leaves and their order alone, not on how they came in pieces. Leaves and
nodes are hashed under different first bytes: no node can be passed off as a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from blake3 import blake3

_LEAF: Final = b"\0"
_NODE: Final = b"\1"
EMPTY_ROOT: Final = blake3(b"").digest()


def leaf_of(encoded: bytes) -> bytes:
    """Hash one row."""
    return blake3(_LEAF + encoded).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return blake3(_NODE + left + right).digest()


class MerkleTree:
    """A tree that grows at its right end."""

    __slots__ = ("_peaks", "leaves")

    def __init__(self) -> None:
        self.leaves = 0
        self._peaks: list[bytes] = []
        """Roots of whole subtrees, the largest first: one for each bit that `leaves` has."""

    def append(self, leaf: bytes) -> None:
        """Add the hash of a row."""
        self.leaves += 1
        peak, at = leaf, self.leaves
        while at % 2 == 0:
            peak = _node(self._peaks.pop(), peak)
            at //= 2
        self._peaks.append(peak)

    def root(self) -> bytes:
        if not self._peaks:
            return EMPTY_ROOT
        *others, root = self._peaks
        for peak in reversed(others):
            root = _node(peak, root)
        return root


def root_of(leaves: Iterable[bytes]) -> bytes:
    """Return the root of a tree of these leaves."""
    tree = MerkleTree()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()


def root_of_streams(roots: dict[str, bytes]) -> bytes:
    """Return one root for many streams, each with its name, in the order of their names."""
    return root_of(
        leaf_of(len(name.encode()).to_bytes(4, "little") + name.encode() + roots[name])
        for name in sorted(roots)
    )
