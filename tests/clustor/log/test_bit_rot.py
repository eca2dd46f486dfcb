"""Acknowledged, then lost? Every bit of every file rots, and files vanish, shrink and swap.

Each fault must be detected and classified as clustor §9.4 says, or be of no consequence. What
is never allowed is a healthy log that holds anything but the truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import permutations

import pytest

from clustor.log.errors import ChecksumMismatch, LogError, MissingFile
from clustor.log.ledger import LEDGER_FILE, LedgerIdentity
from clustor.log.log import create_log
from clustor.log.metadata import METADATA_FILE
from clustor.log.reader import LogReader
from clustor.log.recovery import RecoveryFindingKind
from clustor.log.segment import index_file, segment_file, segment_seq_of
from clustor.log.steps import FileName
from clustor.log.types import LogId, LogState, PartitionId
from clustor.sim.disk import SimDisk
from tests.clustor.log.harness import MODE, Operation, append, seal
from tests.clustor.log.rot import (
    HISTORIES,
    TINY,
    Outcome,
    Place,
    Rest,
    compact_everything,
    contents_of,
    drop,
    files_of,
    flipped,
    outcome_of,
    places,
    removed,
    replaced,
    shortened,
    transition,
)

OTHER = LedgerIdentity(PartitionId(8), LogId(bytes(16)))
HEALTHY, NEEDS_REPAIR, QUARANTINED = LogState.HEALTHY, LogState.NEEDS_REPAIR, LogState.QUARANTINED

# How damage to a byte of each place is classified; None is a log that does not open at all.
CLASSIFIED: dict[Place, tuple[tuple[LogState | None, ...], RecoveryFindingKind]] = {
    Place.METADATA: ((None,), RecoveryFindingKind.DAMAGE),
    Place.INDEX: ((HEALTHY,), RecoveryFindingKind.INDEX_REBUILT),
    Place.LEDGER_START: ((None, NEEDS_REPAIR), RecoveryFindingKind.DAMAGE),
    Place.LEDGER_PROVEN: ((NEEDS_REPAIR,), RecoveryFindingKind.DAMAGE),
    Place.LEDGER_LAST_WRITE: ((HEALTHY,), RecoveryFindingKind.TORN_LEDGER),
    Place.LEDGER_ZEROS: ((HEALTHY,), RecoveryFindingKind.TORN_LEDGER),
    Place.SEGMENT_HEADER: ((NEEDS_REPAIR,), RecoveryFindingKind.DAMAGE),
    Place.RUN_HEADER: ((NEEDS_REPAIR,), RecoveryFindingKind.DAMAGE),
    Place.SEALED: ((QUARANTINED,), RecoveryFindingKind.DAMAGE),
    # Without its first word nobody can tell a trailer from a run whose CRC fails.
    Place.TRAILER_MAGIC: ((NEEDS_REPAIR,), RecoveryFindingKind.DAMAGE),
    Place.TRAILER: ((QUARANTINED,), RecoveryFindingKind.DAMAGE),
    Place.SEGMENT_ZEROS: ((HEALTHY,), RecoveryFindingKind.TORN_TAIL),
}


@cache
def at_rest(history: str) -> Rest:
    return Rest.after(HISTORIES[history])


def segments(disk: SimDisk) -> list[int]:
    found = [segment_seq_of(name) for name in disk.names("wal")]
    return [seq for seq in found if seq is not None]


def _flip_everywhere(rest: Rest, bits_of: dict[int, tuple[int, ...]]) -> int:
    disk = rest.world.disk
    flips = 0
    for file in files_of(disk):
        for position, place in enumerate(places(disk, file)):
            for bit in bits_of[position % 8]:
                outcome = outcome_of(rest, flipped(disk, file, position, bit))
                _check_class(rest, outcome, place, f"{file} byte {position} bit {bit}")
                flips += 1
    return flips


def _check_class(rest: Rest, outcome: Outcome, place: Place, where: str) -> None:
    states, finding = CLASSIFIED[place]
    assert outcome.state in states, (where, place, outcome)
    if outcome.state is None:
        assert isinstance(outcome.error, ChecksumMismatch), (where, place, outcome)
    else:
        assert finding in outcome.found, (where, place, outcome)
    if outcome.state is LogState.HEALTHY:
        assert outcome.durability_mode_epoch == rest.world.log.durability_mode_epoch, where


ONE_BIT_EACH: dict[int, tuple[int, ...]] = {position: (position * 5 % 8,) for position in range(8)}
ALL_BITS: dict[int, tuple[int, ...]] = {position: tuple(range(8)) for position in range(8)}


@pytest.mark.parametrize("history", HISTORIES)
def test_a_rotten_bit_is_detected_and_classified(history: str) -> None:
    rest = at_rest(history)
    flips = _flip_everywhere(rest, ONE_BIT_EACH)
    assert flips == sum(rest.world.disk.size(file) for file in files_of(rest.world.disk))


@pytest.mark.soak
@pytest.mark.parametrize("history", HISTORIES)
def test_every_rotten_bit_is_detected_and_classified(history: str) -> None:
    flips = _flip_everywhere(at_rest(history), ALL_BITS)
    print(f"{history}: {flips} flips")


@pytest.mark.parametrize("history", HISTORIES)
def test_a_log_at_rest_opens_with_nothing_found(history: str) -> None:
    rest = at_rest(history)
    outcome = outcome_of(rest, rest.world.disk.copy())
    assert outcome.state is LogState.HEALTHY
    assert outcome.found == frozenset()


@pytest.mark.parametrize("history", HISTORIES)
def test_a_file_that_is_gone_is_missed(history: str) -> None:
    """Healthy only where the file held nothing that was not also elsewhere."""
    rest = at_rest(history)
    for file in files_of(rest.world.disk):
        outcome = outcome_of(rest, removed(rest.world.disk, file))
        if file in (METADATA_FILE, LEDGER_FILE):
            assert isinstance(outcome.error, MissingFile), (file, outcome)
        elif file.endswith(".idx"):
            assert outcome.found == {RecoveryFindingKind.INDEX_REBUILT}, (file, outcome)


@pytest.mark.parametrize("history", HISTORIES)
def test_a_file_cut_short_anywhere_loses_nothing_in_silence(history: str) -> None:
    rest = at_rest(history)
    for file in files_of(rest.world.disk):
        for size_bytes in _lengths(rest.world.disk, file):
            outcome_of(rest, shortened(rest.world.disk, file, size_bytes))


def _lengths(disk: SimDisk, file: FileName) -> Iterator[int]:
    """Every length of a small file; of a long one every border, and one in seven between."""
    kinds = list(places(disk, file))
    for length in range(len(kinds)):
        near = kinds[max(length - 2, 0) : length + 2]
        if len(kinds) <= 1024 or length % 7 == 0 or len(set(near)) > 1:
            yield length


@pytest.mark.parametrize("history", HISTORIES)
def test_a_file_that_grew_loses_nothing(history: str) -> None:
    rest = at_rest(history)
    for file in files_of(rest.world.disk):
        whole = contents_of(rest.world.disk, file)
        for more in (b"\0", b"\1", bytes(600), b"CRUN" + bytes(96), b"CEND" + bytes(94), whole):
            outcome_of(rest, replaced(rest.world.disk, file, whole + more))


@pytest.mark.parametrize("history", HISTORIES)
def test_zeroed_and_misdirected_sectors_lose_nothing_in_silence(history: str) -> None:
    """A write that went to the wrong place, or a sector that reads as zeros."""
    rest = at_rest(history)
    for file in files_of(rest.world.disk):
        whole = contents_of(rest.world.disk, file)
        for start in range(0, len(whole), 64):
            zeroed = whole[:start] + bytes(64) + whole[start + 64 :]
            doubled = whole[:start] + whole[max(start - 64, 0) : start] + whole[start:]
            without = whole[:start] + whole[start + 64 :]
            for damaged in (zeroed[: len(whole)], doubled, without):
                outcome_of(rest, replaced(rest.world.disk, file, damaged))


@pytest.mark.parametrize("history", HISTORIES)
def test_exchanged_segments_are_noticed(history: str) -> None:
    rest = at_rest(history)
    disk = rest.world.disk
    for one, two in permutations(segments(disk), 2):
        swapped = replaced(disk, segment_file(one), contents_of(disk, segment_file(two)))
        outcome = outcome_of(rest, swapped)
        assert outcome.state is not LogState.HEALTHY, (one, two)
        both = replaced(swapped, segment_file(two), contents_of(disk, segment_file(one)))
        outcome = outcome_of(rest, both)
        assert outcome.state is not LogState.HEALTHY, (one, two)


@pytest.mark.parametrize("history", HISTORIES)
def test_a_segment_under_a_higher_number_adds_nothing(history: str) -> None:
    rest = at_rest(history)
    disk = rest.world.disk
    for seq in segments(disk):
        for other in (max(segments(disk)) + 1, 10**6):
            whole = contents_of(disk, segment_file(seq))
            for data in (whole, whole[:128], whole[:200], bytes(500), b""):
                outcome_of(rest, replaced(disk, segment_file(other), data))


@pytest.mark.parametrize("history", HISTORIES)
def test_a_segment_under_a_lower_number_adds_nothing(history: str) -> None:
    rest = at_rest(history)
    disk = rest.world.disk
    for seq in segments(disk):
        outcome_of(rest, replaced(disk, segment_file(0), contents_of(disk, segment_file(seq))))


@pytest.mark.parametrize("history", HISTORIES)
def test_an_index_of_another_segment_is_rebuilt(history: str) -> None:
    rest = at_rest(history)
    disk = rest.world.disk
    indices = [index_file(seq) for seq in segments(disk)]
    indices = [file for file in indices if file.rpartition("/")[2] in disk.names("wal")]
    for one, two in permutations(indices, 2):
        outcome = outcome_of(rest, replaced(disk, one, contents_of(disk, two)))
        assert outcome.found == {RecoveryFindingKind.INDEX_REBUILT}


# The segment that an installation opens first, beside the ledger it replaces last, is also what
# a crash in between leaves: nothing can tell the two apart.
RESTORABLE = [
    history for history in HISTORIES if history != "snapshot installed, nothing behind it"
]


@pytest.mark.parametrize("history", RESTORABLE)
def test_an_older_ledger_loses_nothing_in_silence(history: str) -> None:
    """A copy of the ledger from any earlier moment, as a careless restore would leave."""
    rest = at_rest(history)
    for older in rest.ledgers:
        outcome_of(rest, replaced(rest.world.disk, LEDGER_FILE, older))


@pytest.mark.parametrize("history", ["suffix replaced", "suffix replaced across segments"])
def test_a_reader_of_a_damaged_log_yields_no_void_entry_as_proven(history: str) -> None:
    """A ledger that breaks off before a truncation still proves what was truncated."""
    rest = at_rest(history)
    disk, (base, held) = rest.world.disk, rest.world.contents
    for position in range(0, disk.size(LEDGER_FILE), 5):
        damaged = flipped(disk, LEDGER_FILE, position, position % 8)
        try:
            for entry in LogReader.open(damaged, rest.world.keys).entries():
                assert (entry.term, entry.payload) == held[entry.index - base - 1], position
        except LogError:
            pass


LAST_WORDS = {
    "suffix dropped": [append(10, 10, 10), drop(2)],
    "suffix dropped across segments": [append(10), seal(), append(10, 10), drop(3)],
    "mode changed": [append(10), transition()],
    "segment closed": [append(10, 10), seal()],
}


@pytest.mark.parametrize("history", LAST_WORDS.values(), ids=LAST_WORDS.keys())
def test_the_last_word_of_a_ledger_is_not_taken_for_a_torn_write(
    history: list[Operation],
) -> None:
    """It was durable and its user was told: void entries stay void, the epoch never falls back."""
    rest = Rest.after(history)
    disk = rest.world.disk
    for position in range(disk.size(LEDGER_FILE)):
        outcome = outcome_of(rest, flipped(disk, LEDGER_FILE, position, position % 8))
        if outcome.state is LogState.HEALTHY:
            assert outcome.durability_mode_epoch == rest.world.log.durability_mode_epoch


def test_metadata_of_another_log_is_refused() -> None:
    rest = at_rest("closed and open")
    stranger = SimDisk()
    _, plan = create_log(OTHER, rest.world.keys, TINY, MODE)
    stranger.execute(plan)
    disk = rest.world.disk
    for file in (METADATA_FILE, LEDGER_FILE):
        outcome = outcome_of(rest, replaced(disk, file, contents_of(stranger, file)))
        assert isinstance(outcome.error, LogError), file
        assert outcome.state is None


def test_a_log_that_was_compacted_to_its_end_does_not_vanish_with_its_metadata() -> None:
    """No segment is left to testify, but the ledger is: this is no unfinished creation."""
    rest = Rest.after([append(10, 10), seal(), compact_everything()])
    assert segments(rest.world.disk) == []
    outcome = outcome_of(rest, removed(rest.world.disk, METADATA_FILE))
    assert isinstance(outcome.error, MissingFile)
