"""Snapshots leave at the rate of §9.5 and not faster, each receiver by its own."""

from __future__ import annotations

from clustor.log.types import PartitionId
from clustor.raft.types import ReplicaId
from clustor.replica import ChunkSent, StreamsSent
from clustor.replica.transfer import StreamPiece
from clustor.runtime.peers.snapshot_pace import PacedChunk, SnapshotPace

KIB = 1 << 10
RATE = 1024 * KIB
ONE, TWO = PartitionId(1), PartitionId(2)
PEER, OTHER = ReplicaId(2), ReplicaId(3)


def chunk(number: int, size: int = 100 * KIB) -> ChunkSent:
    return ChunkSent("manifest", f"chunk-{number}", b"x" * size)


def chunk_of(paced: PacedChunk) -> ChunkSent:
    assert isinstance(paced.chunk, ChunkSent)
    return paced.chunk


def sealed(paced: PacedChunk) -> bytes:
    return chunk_of(paced).sealed


def sent_by(pace: SnapshotPace, seconds: int, target: ReplicaId = PEER) -> int:
    """Return how many bytes leave for a receiver in so many seconds of ticks."""
    return sum(
        len(sealed(paced))
        for now_ms in range(10_000, 10_000 + 1000 * seconds, 10)
        for paced in pace.take(now_ms)
        if paced.target == target
    )


def test_a_peer_gets_its_rate_whatever_waits() -> None:
    pace = SnapshotPace(RATE)
    for number in range(100):
        pace.add(ONE, PEER, chunk(number))
    sent = sent_by(pace, 5)
    assert 4 * RATE <= sent <= 6 * RATE, "five seconds, and the bucket's one at the start"
    assert pace.waiting == 100 - sent // (100 * KIB)


def test_groups_share_a_peers_rate_and_peers_do_not() -> None:
    pace = SnapshotPace(RATE)
    for number in range(100):
        pace.add(ONE, PEER, chunk(number))
        pace.add(TWO, PEER, chunk(number))
        pace.add(ONE, OTHER, chunk(number))
    by_target = {PEER: 0, OTHER: 0}
    for now_ms in range(10_000, 15_000, 10):
        for paced in pace.take(now_ms):
            by_target[paced.target] += len(sealed(paced))
    assert 4 * RATE <= by_target[PEER] <= 6 * RATE
    assert 4 * RATE <= by_target[OTHER] <= 6 * RATE


def test_an_observer_has_a_share_of_its_own() -> None:
    pace = SnapshotPace(RATE)
    pace.allow(ONE, PEER, RATE // 10)
    for number in range(100):
        pace.add(ONE, PEER, chunk(number, 10 * KIB))
    sent = sent_by(pace, 5)
    assert 4 * RATE // 10 <= sent <= 6 * RATE // 10
    pace.allow(ONE, PEER, RATE)  # it became a voter
    assert sent_by(pace, 5) == 100 * 10 * KIB - sent


def test_order_is_kept_and_what_is_asked_for_again_waits_once() -> None:
    pace = SnapshotPace(RATE)
    for _ in range(3):
        for number in range(4):
            pace.add(ONE, PEER, chunk(number))
    assert pace.waiting == 4
    taken = [chunk_of(paced).chunk_id for paced in pace.take(10_000)]
    assert taken == [f"chunk-{number}" for number in range(4)]
    pace.add(ONE, PEER, chunk(0))
    assert pace.waiting == 1, "it has left, so it was lost, and is sent again"


def test_a_chunk_beyond_a_whole_second_leaves_all_the_same() -> None:
    pace = SnapshotPace(RATE)
    for number in range(3):
        pace.add(ONE, PEER, chunk(number, 3 * RATE))
    assert len(pace.take(10_000)) == 1
    assert not pace.take(10_500)
    assert len(pace.take(11_000)) == 1


def test_pieces_of_streams_go_the_same_way_and_wait_once() -> None:
    pace = SnapshotPace(RATE)
    pieces = StreamsSent(9, (StreamPiece(1, 0, 0, b"", b"x" * RATE, 0, None),))
    pace.add(ONE, PEER, pieces)
    pace.add(ONE, PEER, pieces)
    pace.add(ONE, PEER, chunk(1))
    assert pace.waiting == 2
    assert [paced.chunk for paced in pace.take(10_000)] == [pieces]
    assert pace.take(10_010) == []
    assert [paced.chunk for paced in pace.take(12_000)] == [chunk(1)]
