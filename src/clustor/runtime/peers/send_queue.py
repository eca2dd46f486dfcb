"""What waits to be sent to one peer: bounded, and what matters least is dropped first.

Raft tolerates every loss, so a peer that does not read costs a bounded number of bytes and never
a wait. Heartbeats and answers that carry no entries go first: the next ones say the same, newer.
"""

from __future__ import annotations

from clustor import wire as w

_ENVELOPE_BYTES = 160  # a packet beside its slices, generously


class SendQueue:
    """Packets in order. `bytes_max` holds for what waits, not for what was taken."""

    __slots__ = ("_bytes", "_bytes_max", "_packets", "_sizes", "dropped")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._packets: list[w.Packet] = []
        self._sizes: list[int] = []
        self._bytes = 0
        self.dropped = 0
        """How many packets were dropped for want of room, ever."""

    def __len__(self) -> int:
        return len(self._packets)

    def add(self, packet: w.Packet) -> None:
        """Let a packet wait; older ones, or in the end itself, make room for it."""
        size = packet_bytes(packet)
        self._packets.append(packet)
        self._sizes.append(size)
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._make_room()

    def take(self) -> list[w.Packet]:
        """Take all that waits."""
        packets = self._packets
        self.clear()
        return packets

    def clear(self) -> None:
        """Forget all that waits."""
        self._packets, self._sizes, self._bytes = [], [], 0

    def _make_room(self) -> None:
        """Drop down to three quarters, heartbeats first, the oldest of each kind first."""
        target = self._bytes_max * 3 // 4
        order = sorted(
            range(len(self._packets)), key=lambda at: not is_heartbeat(self._packets[at])
        )
        gone: set[int] = set()
        for at in order:
            if self._bytes <= target:
                break
            gone.add(at)
            self._bytes -= self._sizes[at]
        self._packets = [packet for at, packet in enumerate(self._packets) if at not in gone]
        self._sizes = [size for at, size in enumerate(self._sizes) if at not in gone]
        self.dropped += len(gone)


def is_heartbeat(packet: w.Packet) -> bool:
    """Say whether the next packet of its kind will say the same anew."""
    message = packet.message
    if isinstance(message, w.AppendEntriesRequest):
        return not message.entries
    return isinstance(message, w.AppendEntriesResponse)


def packet_bytes(packet: w.Packet) -> int:
    """Return about how many bytes a packet holds."""
    message = packet.message
    if isinstance(message, w.AppendEntriesRequest | w.RepairEntriesBody):
        return _ENVELOPE_BYTES + sum(map(len, message.entries))
    if isinstance(message, w.SnapshotTransfer | w.ServiceMessage):
        return _ENVELOPE_BYTES + len(message.data)
    return _ENVELOPE_BYTES
