"""What a snapshot says beside the machine's state: the members and modes at its base.

    length:u32 (little-endian)  canonical JSON  the machine's own snapshot

The members must be in the snapshot itself: it replaces the entries that made them, and a
replica that crashes right after an installation must not count the votes of older members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import rfc8785

from clustor.log.types import DurabilityMode, DurabilityModeEpoch, LogIndex
from clustor.raft.hard_state import HardState
from clustor.raft.membership import Membership
from clustor.raft.types import RoutingEpoch
from clustor.replica.documents import MembersDocument, members_document, members_of
from clustor.snapshot.errors import CorruptSnapshot

_HEADER_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The committed members and modes of whoever emitted the snapshot."""

    base_index: LogIndex
    membership: Membership
    membership_index: LogIndex  # at or below the base
    routing_epoch: RoutingEpoch
    durability_mode: DurabilityMode
    durability_mode_epoch: DurabilityModeEpoch


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    base_index: str
    membership: MembersDocument
    membership_index: str
    routing_epoch: str
    durability_mode: int
    durability_mode_epoch: int
    format_version: int = 1


def header_of(hard: HardState, base_index: LogIndex) -> SnapshotHeader:
    """Describe the hard state for a snapshot at `base_index`."""
    return SnapshotHeader(
        base_index,
        hard.membership,
        min(hard.membership_index, base_index),
        hard.routing_epoch,
        hard.durability_mode,
        hard.durability_mode_epoch,
    )


def encode_header(header: SnapshotHeader) -> bytes:
    document = _Header(
        str(header.base_index),
        members_document(header.membership),
        str(header.membership_index),
        str(header.routing_epoch),
        int(header.durability_mode),
        header.durability_mode_epoch,
    )
    members: dict[str, Any] = msgspec.to_builtins(document)
    encoded = rfc8785.dumps(members)
    return len(encoded).to_bytes(4, "little") + encoded


def split_header(pieces: Iterable[bytes]) -> tuple[SnapshotHeader, Iterator[bytes]]:
    """Take the header off a snapshot's content; the rest is the machine's.

    Raises CorruptSnapshot for what `encode_header` did not write.
    """
    rest = iter(pieces)
    held = bytearray()
    wanted = 4
    for piece in rest:
        held += piece
        if len(held) >= 4:
            wanted = 4 + int.from_bytes(held[:4], "little")
            if len(held) >= wanted or wanted > _HEADER_BYTES_MAX:
                break
    if not 4 < wanted <= min(len(held), _HEADER_BYTES_MAX):
        raise CorruptSnapshot("a snapshot without a header")
    header = _decode(bytes(held[4:wanted]))

    def content() -> Iterator[bytes]:
        yield bytes(held[wanted:])
        yield from rest

    return header, content()


def _decode(data: bytes) -> SnapshotHeader:
    try:
        found = msgspec.json.decode(data, type=_Header)
        return SnapshotHeader(
            LogIndex(int(found.base_index)),
            members_of(found.membership),
            LogIndex(int(found.membership_index)),
            RoutingEpoch(int(found.routing_epoch)),
            DurabilityMode(found.durability_mode),
            DurabilityModeEpoch(found.durability_mode_epoch),
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptSnapshot("a snapshot's header cannot be read") from error


def adopt(header: SnapshotHeader, hard: HardState) -> HardState:
    """Return the hard state of a replica that stands on this snapshot."""
    knows_nobody = not hard.membership.members
    if knows_nobody or header.membership_index > hard.membership_index:
        hard = replace(
            hard,
            membership=header.membership,
            membership_index=header.membership_index,
            routing_epoch=header.routing_epoch,
        )
    if header.durability_mode_epoch > hard.durability_mode_epoch:
        hard = replace(
            hard,
            durability_mode=header.durability_mode,
            durability_mode_epoch=header.durability_mode_epoch,
        )
    return hard
