"""Batches that wait in memory are the list they look like, however they are held and cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clustor.streams.piece import BLOCK_BYTES_MIN, BatchPiece
from clustor.streams.runs import ROW, ROW_BYTES

Batch = tuple[int, int, int, bytes]

counts = st.integers(1, 4)
sizes = st.one_of(st.integers(0, 60), st.sampled_from([BLOCK_BYTES_MIN - 1, BLOCK_BYTES_MIN]))
drawn = st.lists(st.tuples(counts, sizes, st.integers(-5, 2000)), min_size=1, max_size=90)


def built(rows: list[tuple[int, int, int]]) -> tuple[BatchPiece, list[Batch]]:
    piece, batches, first = BatchPiece(), [], 7
    for nth, (count, size, timestamp) in enumerate(rows):
        payload = bytes([nth % 256]) * size
        piece.add_row(ROW.pack(first, count, size, timestamp), payload)
        batches.append((first, count, timestamp, payload))
        first += count
    return piece, batches


def listed(piece: BatchPiece) -> list[Batch]:
    """Read a piece's plaintext as a reader of runs would."""
    plaintext, found = piece.plaintext(), []
    position = piece.table_bytes
    for first, count, length, timestamp in ROW.iter_unpack(plaintext[: piece.table_bytes]):
        found.append((first, count, timestamp, plaintext[position : position + length]))
        position += length
    assert position == len(plaintext) == piece.size_bytes
    return found


def size_of(batches: list[Batch]) -> int:
    return sum(len(at[3]) + ROW_BYTES for at in batches)


@given(drawn)
def test_a_piece_holds_the_batches_that_were_added(rows: list[tuple[int, int, int]]) -> None:
    piece, batches = built(rows)
    assert piece and not BatchPiece()
    assert listed(piece) == batches
    assert piece.batch_count == len(batches)
    assert piece.first_index == batches[0][0]
    assert piece.next_index == batches[-1][0] + batches[-1][1]
    assert piece.max_timestamp == max(at[2] for at in batches)
    assert piece.size_bytes == size_of(batches)


@given(drawn, st.integers(64, 3000))
def test_cuts_are_as_long_as_they_may_be_and_no_batch_is_lost(
    rows: list[tuple[int, int, int]], run_bytes: int
) -> None:
    piece, batches = built(rows)
    parts = [listed(part) for part in piece.cut(run_bytes)]
    assert [at for part in parts for at in part] == batches
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        assert len(part) == 1 or size_of(part) <= run_bytes
        if following is not None:
            assert size_of([*part, following[0]]) > run_bytes, "the next one would have fitted"


@given(drawn, st.integers(0, 300), st.integers(1, 3000))
def test_a_part_starts_with_the_batch_that_holds_the_index_and_stops_when_full(
    rows: list[tuple[int, int, int]], from_index: int, bytes_max: int
) -> None:
    piece, batches = built(rows)
    wanted = [at for at in batches if at[0] + at[1] > from_index]
    part = piece.part(from_index, bytes_max)
    if not wanted:
        assert part is None
        return
    assert part is not None
    found = listed(part)
    assert found and found == wanted[: len(found)]
    assert size_of(found[:-1]) < bytes_max
    assert found == wanted or size_of(found) >= bytes_max
    assert [row[0] for row in part.rows()] == [at[0] for at in found]


@given(drawn)
def test_what_is_frozen_does_not_follow(rows: list[tuple[int, int, int]]) -> None:
    piece, batches = built(rows)
    frozen = piece.frozen()
    for _ in range(40):
        piece.add_row(ROW.pack(piece.next_index, 1, 5, 0), b"later")
    assert listed(frozen) == batches
    assert len(listed(piece)) == len(batches) + 40


def test_a_part_ends_exactly_where_it_is_full_and_is_none_behind_the_end() -> None:
    piece, batches = built([(2, 10, 0)] * 40)
    whole = 10 + ROW_BYTES
    for wanted in (1, 2, 15, 16, 17, 40):
        for bytes_max in (whole * wanted, whole * wanted - 1, whole * (wanted - 1) + 1):
            part = piece.part(7, bytes_max)
            assert part is not None and listed(part) == batches[:wanted]
    assert piece.part(piece.next_index, 1) is None
    last = piece.part(piece.next_index - 1, 1)
    assert last is not None and listed(last) == batches[-1:]


def test_a_long_piece_is_few_objects() -> None:
    piece, _ = built([(1, 10, 0)] * 10_000)
    assert len(piece.fresh) < 32
    assert len(piece._tables) == 10_000 // 16
