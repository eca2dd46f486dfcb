"""The words between a receiver's connection and the leader of its queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ReceiverMode(IntEnum):
    """What a receiver wants of which messages."""

    MOVE = 0
    COPY = 1
    MOVE_DEAD = 2
    COPY_DEAD = 3

    @property
    def is_copy(self) -> bool:
        """Whether it only looks."""
        return bool(self & 1)

    @property
    def is_dead(self) -> bool:
        """Whether it is about dead letters."""
        return bool(self & 2)


@dataclass(frozen=True, slots=True)
class ReceiverWish:
    """What a receiver wants of which queue."""

    queue: bytes
    mode: ReceiverMode = ReceiverMode.MOVE
    selector: str = ""
    not_from: bytes = b""
    """The mark of a sender whose messages are not wanted (`sender_mark`)."""
    terminus: bytes = b""
    """The durable end of its link; empty: none."""


class AttachmentEnd(IntEnum):
    """Why a leader serves a receiver no more."""

    NONE = 0
    NOT_LEADER = 1  # another one does, or will
    NO_QUEUE = 2
    DELETED = 3
    STOLEN = 4  # its link has come back elsewhere
