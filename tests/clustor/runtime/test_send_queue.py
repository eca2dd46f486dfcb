"""What waits for a peer is bounded, and what matters least is dropped first."""

from __future__ import annotations

from clustor import wire as w
from clustor.runtime.peers.send_queue import SendQueue, packet_bytes

ROUTE = w.PacketRoute(
    w.PartitionId(1), w.ReplicaId(1), w.ReplicaId(2), w.Term(1), w.DurabilityModeEpoch(0)
)


def append(round_number: int, *entries: bytes) -> w.Packet:
    nought = w.LogIndex(0)
    return w.Packet(
        ROUTE,
        w.AppendEntriesRequest(
            *(nought, w.Term(0), nought, nought, w.LeaseEpoch(0)),
            *(round_number, 0, 0, nought, nought),
            entries=list(entries),
        ),
    )


def rounds(packets: list[w.Packet]) -> list[int]:
    return [
        packet.message.round_number
        for packet in packets
        if isinstance(packet.message, w.AppendEntriesRequest)
    ]


def test_packets_leave_once_in_the_order_they_came() -> None:
    queue = SendQueue(1 << 20)
    for number in range(5):
        queue.add(append(number))
    assert rounds(queue.take()) == [0, 1, 2, 3, 4]
    assert queue.take() == []
    assert queue.dropped == 0


def test_without_room_the_oldest_heartbeats_go_first_and_entries_stay() -> None:
    size = packet_bytes(append(0))
    queue = SendQueue(8 * size)
    queue.add(append(100, b"entry"))
    for number in range(8):
        queue.add(append(number))
    kept = rounds(queue.take())
    assert kept[0] == 100
    assert kept[1:] == list(range(8 - len(kept) + 1, 8))
    assert queue.dropped > 0


def test_entries_too_are_dropped_before_the_queue_outgrows_its_bound() -> None:
    queue = SendQueue(100_000)
    for number in range(1000):
        queue.add(append(number, bytes(10_000)))
    kept = rounds(queue.take())
    assert 0 < len(kept) <= 10
    assert kept[-1] == 999
    assert kept == sorted(kept)


def test_one_packet_larger_than_the_bound_is_dropped_itself() -> None:
    queue = SendQueue(1000)
    queue.add(append(1, bytes(2000)))
    assert len(queue) == 0
    queue.add(append(2))
    assert rounds(queue.take()) == [2]
