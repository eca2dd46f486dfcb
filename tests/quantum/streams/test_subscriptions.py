"""What members write of themselves: read where it is whole, nothing where it is not."""

from __future__ import annotations

import struct

import pytest

from quantum.broker.streams.subscriptions import assigned_partitions


def assignment(*topics: tuple[str, list[int]], count: int | None = None) -> bytes:
    data = struct.pack(">hi", 0, len(topics) if count is None else count)
    for name, partitions in topics:
        data += struct.pack(">h", len(name)) + name.encode()
        data += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return data + struct.pack(">i", -1)  # the user data of a stock client


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (assignment(("t", [0, 2]), ("orders", [1])), [("t", 0), ("t", 2), ("orders", 1)]),
        (assignment(), []),
        (b"", []),
        (assignment(("t", [0, 1]))[:14], []),
        (assignment(("t", [-1, 3])), [("t", 3)]),
        (assignment(("t", [0]), count=1 << 30), []),
    ],
    ids=["two topics", "none", "no bytes", "cut off", "no such number", "more than is there"],
)
def test_what_a_member_was_given_is_read(data: bytes, found: list[tuple[str, int]]) -> None:
    assert assigned_partitions(data) == found
