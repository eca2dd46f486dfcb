"""The words of the session processor."""

from __future__ import annotations

from typing import Final, NewType

PrgId = NewType("PrgId", int)
"""A partition's number in its tenant's ring, from 0."""
ClientId = NewType("ClientId", bytes)
SessionEpoch = NewType("SessionEpoch", int)
"""Fences a session's state: it grows when a client starts clean."""
PacketId = NewType("PacketId", int)
TopicFilter = NewType("TopicFilter", bytes)
Topic = NewType("Topic", bytes)
Sequence = NewType("Sequence", int)
"""A place in the channel from one partition to another, from 1."""

QOS_0: Final = 0
QOS_1: Final = 1
QOS_2: Final = 2

# Packet ids of what the machine keeps come from the lower half, those of what only a connection
# knows from the upper one: the two never meet on a connection.
MACHINE_PACKET_ID_MAX: Final = 0x7FFF

TIME_MAX_MS: Final = 1 << 53
"""No stamp is later: sums of times stay far below what 64 bits hold."""

TRANSFER: Final = 1 << 16
"""Added to a partition's number, it names the channel that carries what moves to a fresh one."""

MOVE_GRACE_MS: Final = 10_000
"""How much longer a client whose session moved may stay away before it counts as gone."""

NEVER_EXPIRES: Final = 0xFFFF_FFFF
"""A session expiry interval of this many seconds means for ever (MQTT 5, 3.1.2.11.2)."""
