"""Commands larger than an entry of the log: cut by the leader, put together by every replica.

An entry holds 1 MiB (clustor §7.1), a message 16 MiB. The parts of a command follow each other in
one leader's log; other commands may stand between them. What a leader did not finish is never
finished: `LeaderStarted` forgets it. What is here of an unfinished command is state, so that a
replica which begins from a snapshot in the middle of it ends like the others.
"""

from __future__ import annotations

from typing import Final

from quantum.broker.commands import (
    PUBLISHES,
    PUBLISHES_HEAD,
    Part,
    decode_command,
    encode_command,
)
from quantum.broker.sections import is_section_command, section_stamp

PART_BYTES_MAX: Final = (1 << 20) - (8 << 10)
"""A little less than an entry: a batch of Kafka's usual 1,000,000 bytes goes whole in one."""
_DATA_BYTES_MAX: Final = PART_BYTES_MAX - 64  # what is around it is less than that
COMMAND_BYTES_MAX: Final = 64 << 20
"""Nothing larger is put together, whatever a log says."""


def split_command(command: bytes) -> list[bytes]:
    """Cut a command into commands that fit an entry; one that fits stays what it is."""
    if len(command) <= PART_BYTES_MAX:
        return [command]
    starts, now_ms = range(0, len(command), _DATA_BYTES_MAX), stamp_of(command)
    return [
        encode_command(Part(number, len(starts), command[start : start + _DATA_BYTES_MAX], now_ms))
        for number, start in enumerate(starts)
    ]


def stamp_of(command: bytes) -> int:
    """Return the time that a command says; 0 where it says none."""
    if command[0] == PUBLISHES:
        return int(PUBLISHES_HEAD.unpack_from(command)[1])
    if is_section_command(command):
        return section_stamp(command)
    return int(getattr(decode_command(command), "now_ms", 0))


PART_HEAD: Final = encode_command(Part(0, 0, b""))[:2]
"""How every part begins."""


def is_part(command: bytes) -> bool:
    """Say whether a command is a part of a larger one."""
    return command.startswith(PART_HEAD)


class Parts:
    """The command that is coming in parts. Part of the state."""

    __slots__ = ("_held", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._held = 0

    def take(self, part: Part) -> bytes | None:
        """Take the next part: the whole command with the last one, nothing before.

        None where it is not the next one, or too much: then nothing is left of the command.
        """
        if part.number == 0:
            self.forget()
        if part.number != len(self.pieces) or self._held + len(part.data) > COMMAND_BYTES_MAX:
            self.forget()
            return None
        self.add(part.data)
        if part.number + 1 < part.count:
            return b""
        whole = b"".join(self.pieces)
        self.forget()
        return whole

    def add(self, data: bytes) -> None:
        self.pieces.append(data)
        self._held += len(data)

    def forget(self) -> None:
        self.pieces, self._held = [], 0
