"""What a scrub of snapshots reads: every file that a start would, the whole chain, and no other."""

from __future__ import annotations

import pytest

from clustor.log.steps import FileName
from clustor.snapshot.layout import AUTHORIZATION_LOG, chunk_file, manifest_file
from clustor.snapshot.scrub import pieces_of, read_piece
from clustor.snapshot.types import SnapshotKind
from tests.clustor.snapshot.support import Replica, request

FULL, DELTA = SnapshotKind.FULL, SnapshotKind.DELTA


def chained() -> Replica:
    """One that was superseded, then a full one and two deltas."""
    replica = Replica()
    state = {f"key{number}": "v" * 40 for number in range(9)}
    replica.emit(request(1, 10, FULL), state)
    replica.emit(request(2, 20, FULL), state | {"b": "2"})
    replica.emit(request(3, 30, DELTA), {"c": "3"})
    replica.emit(request(4, 40, DELTA), {"d": "4"})
    return replica


def files(replica: Replica) -> list[FileName]:
    return [each.file for each in pieces_of(replica.catalog)]


def test_a_chain_is_read_whole_and_what_is_superseded_is_not() -> None:
    replica = chained()
    old, *chain = replica.catalog.snapshots
    expected = {AUTHORIZATION_LOG}
    for each in chain:
        expected.add(manifest_file(each.record.base_term, each.record.base_index))
        expected |= {chunk_file(chunk.chunk_id) for chunk in each.manifest.chunks}
    assert set(files(replica)) == expected and len(files(replica)) == len(expected)
    assert not {chunk_file(chunk.chunk_id) for chunk in old.manifest.chunks} & expected


def test_where_no_snapshot_is_nothing_is_read() -> None:
    assert pieces_of(Replica().catalog) == []


@pytest.mark.parametrize("nth", range(len(files(chained()))))
def test_each_file_is_whole_and_a_turned_bit_in_it_is_found(nth: int) -> None:
    replica = chained()
    pieces = pieces_of(replica.catalog)
    assert all(read_piece(replica.disk, each) is None for each in pieces)
    replica.disk.flip_bit(pieces[nth].file, 12, 3)
    found = [read_piece(replica.disk, each) is not None for each in pieces]
    assert found == [number == nth for number in range(len(pieces))]
