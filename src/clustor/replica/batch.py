"""One entry, many commands: everything that waited travels and is synced as one.

count:u32  length:u32 × count  the commands, one after another      (little-endian)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

COMMAND_OVERHEAD_BYTES = 4
BATCH_OVERHEAD_BYTES = 4

_COUNT = struct.Struct("<I")


def encode_batch(commands: Sequence[bytes]) -> bytes:
    """Pack commands into the payload of one entry."""
    count = len(commands)
    return b"".join((struct.pack(f"<{count + 1}I", count, *map(len, commands)), *commands))


def decode_batch(payload: bytes) -> list[bytes]:
    """Take a payload apart; a ValueError means that `encode_batch` did not write it."""
    if len(payload) < BATCH_OVERHEAD_BYTES:
        raise ValueError("a batch without a count")
    (count,) = _COUNT.unpack_from(payload)
    start = BATCH_OVERHEAD_BYTES + count * COMMAND_OVERHEAD_BYTES
    if start > len(payload):
        raise ValueError("a batch is shorter than its count says")
    lengths = struct.unpack_from(f"<{count}I", payload, BATCH_OVERHEAD_BYTES)
    ends = list(accumulate(lengths, initial=start))
    if ends[-1] != len(payload):
        raise ValueError("the lengths of a batch do not add up")
    return [payload[first:end] for first, end in pairwise(ends)]


def commands_that_fit(commands: Sequence[bytes], payload_bytes_max: int) -> int:
    """Return how many of the first commands one payload holds, at least one."""
    room = payload_bytes_max - BATCH_OVERHEAD_BYTES
    for position, command in enumerate(commands):
        room -= len(command) + COMMAND_OVERHEAD_BYTES
        if room < 0:
            return max(1, position)
    return len(commands)
