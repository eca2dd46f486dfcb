"""The tree of rows against its definition."""

from __future__ import annotations

import pytest
from blake3 import blake3

from quantum.lake.table import EMPTY_ROOT, leaf_of, root_of, root_of_streams


def definition(leaves: list[bytes]) -> bytes:
    """RFC 6962 §2.1, word for word."""
    if not leaves:
        return blake3(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return blake3(b"\1" + definition(leaves[:split]) + definition(leaves[split:])).digest()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100])
def test_the_root_is_that_of_the_definition(count: int) -> None:
    leaves = [leaf_of(b"%d" % number) for number in range(count)]
    assert root_of(leaves) == definition(leaves)


def test_every_change_changes_the_root() -> None:
    leaves = [leaf_of(b"%d" % number) for number in range(9)]
    roots = {
        root_of(leaves),
        root_of(leaves[:-1]),
        root_of(leaves[1:]),
        root_of([*leaves, leaves[0]]),
        root_of([leaves[1], leaves[0], *leaves[2:]]),
        root_of([leaf_of(b"other"), *leaves[1:]]),
        root_of([]),
    }
    assert len(roots) == 7
    assert root_of([]) == EMPTY_ROOT


def test_streams_count_with_their_names() -> None:
    one, two = leaf_of(b"1"), leaf_of(b"2")
    assert root_of_streams({"a": one, "b": two}) == root_of_streams({"b": two, "a": one})
    assert root_of_streams({"a": one, "b": two}) != root_of_streams({"a": two, "b": one})
    assert root_of_streams({"a": one}) != root_of_streams({"a": one, "b": EMPTY_ROOT})
