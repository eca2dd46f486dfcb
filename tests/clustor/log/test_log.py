"""What a `Log` plans, step by step, and what it refuses (clustor §10.5, §12.2, C16, C17)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest

from clustor.log.config import LogConfig
from clustor.log.errors import LogFenced, LogMisuse
from clustor.log.frame import FRAME_BODY_BYTES_MAX
from clustor.log.ledger import (
    LEDGER_FILE,
    RECORD_BYTES,
    DurabilityRecord,
    LedgerBody,
    NonceReservationRange,
    Truncation,
    decode_record,
)
from clustor.log.log import Log
from clustor.log.segment import segment_file, segment_seq_of
from clustor.log.steps import Plan, Rename, Sync, WriteFile
from clustor.log.types import (
    BlockCounter,
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    LogIndex,
    SegmentSeq,
    Term,
)
from tests.clustor.log.harness import (
    SMALL,
    Operation,
    World,
    append,
    check_after_crash,
    draw_operation,
    entries_from,
    now,
    overwrite,
    read_back,
    run,
    step_names,
)

ROOMY = LogConfig(segment_bytes=1 << 16, reservation_blocks=8)
SEGMENT_1 = segment_file(1)
FOUR_STEPS = [
    f"WriteFile {SEGMENT_1}",
    f"Sync {SEGMENT_1}",
    f"WriteFile {LEDGER_FILE}",
    f"Sync {LEDGER_FILE}",
]


def records_of(step: WriteFile) -> list[LedgerBody]:
    rows = (step.data[at : at + RECORD_BYTES] for at in range(0, len(step.data), RECORD_BYTES))
    return [decode_record(row).body for row in rows if any(row)]


def ledger_records(plan: Plan) -> list[LedgerBody]:
    writes = (step for step in plan if isinstance(step, WriteFile) and step.file == LEDGER_FILE)
    return [body for step in writes for body in records_of(step)]


def world_of(*operations: Operation, config: LogConfig = SMALL) -> World:
    world = World.new(config)
    for operation in operations:
        run(world, operation)
    return world


# The four steps


def test_an_append_is_exactly_the_four_steps_of_10_5() -> None:
    world = world_of(append(10), config=ROOMY)
    for size in (0, 1, 300):
        planned = world.log.plan_append(entries_from(world.log.last_index + 1, 1, size))
        assert step_names(planned.steps) == FOUR_STEPS
        assert ledger_records(planned.steps) == [planned.receipt]
        world.disk.execute(planned.steps)


def test_c16_a_batch_of_any_number_of_entries_is_still_four_steps() -> None:
    world = world_of(append(10), config=ROOMY)
    planned = world.log.plan_append(entries_from(2, 1, *[20] * 200))
    assert step_names(planned.steps) == FOUR_STEPS
    assert planned.receipt == DurabilityRecord(Term(1), LogIndex(201), SegmentSeq(1))


def test_nothing_counts_as_durable_before_its_receipt_is_stored() -> None:
    world = world_of(append(10))
    planned = world.log.plan_append(entries_from(2, 1, 10))
    assert (world.log.last_index, world.log.durable_index) == (2, 1)
    world.disk.execute(planned.steps)
    assert world.log.durable_index == 1
    world.log.stored(planned.receipt)
    assert world.log.durable_index == 2


def test_receipts_that_come_late_do_not_lower_the_proof() -> None:
    world = world_of(append(10))
    first = world.log.plan_append(entries_from(2, 1, 10))
    second = world.log.plan_append(entries_from(3, 1, 10))
    world.disk.execute(first.steps + second.steps)
    world.log.stored(second.receipt)
    world.log.stored(first.receipt)
    assert world.log.durable == second.receipt


def test_a_new_segment_is_durable_and_reserved_before_its_first_run() -> None:
    world = World.new(ROOMY)
    planned = world.log.plan_append(entries_from(1, 1, 10))
    assert step_names(planned.steps) == [
        f"Create {SEGMENT_1}",
        f"WriteFile {SEGMENT_1}",
        f"Sync {SEGMENT_1}",
        "SyncDirectory wal",
        f"WriteFile {LEDGER_FILE}",
        f"Sync {LEDGER_FILE}",
        *FOUR_STEPS,
    ]


# Reservations


class ReservationWatch:
    """Follows every step and sees that counters are durably reserved before they are used."""

    def __init__(self) -> None:
        self.durable: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self._written: dict[str, list[NonceReservationRange]] = {}

    def watch(self, plan: Plan) -> None:
        for step in plan:
            match step:
                case WriteFile(file) if file.startswith(LEDGER_FILE):
                    ranges = [r for r in records_of(step) if isinstance(r, NonceReservationRange)]
                    self._written.setdefault(file, []).extend(ranges)
                case Sync(file) if file == LEDGER_FILE:
                    self._become_durable(file)
                case Rename(file, _) if file.startswith(LEDGER_FILE):
                    self._become_durable(file)
                case WriteFile(file):
                    self._use(segment_seq_of(file.rpartition("/")[2]), step)
                case _:
                    pass

    def _become_durable(self, file: str) -> None:
        for reserved in self._written.pop(file, []):
            end = reserved.start_block_counter + reserved.reserved_blocks
            known = self.durable.get(reserved.segment_seq, 0)
            self.durable[reserved.segment_seq] = max(known, end)

    def _use(self, seq: int | None, step: WriteFile) -> None:
        if seq is None or step.data[:4] != b"CRUN":
            return
        plaintext_bytes, counter = struct.unpack_from("<IQ", step.data, 4)
        end = counter - (-plaintext_bytes // 4096)
        assert end <= self.durable.get(seq, 0), "a counter is used before it is reserved"
        assert counter >= self.used.get(seq, 0), "a counter is used twice"
        self.used[seq] = end


@pytest.mark.parametrize("seed", range(10))
def test_12_2_no_counter_is_used_before_its_reservation_is_durable(seed: int) -> None:
    rng = Random(seed)
    world, watch = World.new(), ReservationWatch()
    for tag in range(60):
        plan, done, _ = draw_operation(rng, tag)(world)
        watch.watch(plan)
        world.disk.execute(plan)
        done()
        if rng.random() < 0.2:
            world = check_after_crash(now(world))
    assert sum(watch.used.values()) > 30


def test_reserving_ahead_costs_no_sync() -> None:
    world, watch = World.new(ROOMY), ReservationWatch()
    reservations = 0
    for nth in range(200):
        planned = world.log.plan_append(entries_from(nth + 1, 1, 10))
        watch.watch(planned.steps)
        records = ledger_records(planned.steps)
        if nth:
            assert sum(isinstance(step, Sync) for step in planned.steps) == 2
            reservations += sum(isinstance(body, NonceReservationRange) for body in records)
    assert reservations == 200 // ROOMY.reservation_blocks


def test_a_run_longer_than_what_is_reserved_waits_for_its_own_reservation() -> None:
    world = world_of(append(10), config=ROOMY)
    planned = world.log.plan_append(entries_from(2, 1, 10 * 4096))
    assert step_names(planned.steps) == [*FOUR_STEPS[2:], *FOUR_STEPS]
    assert isinstance(ledger_records(planned.steps)[0], NonceReservationRange)


# Truncation, ruling C17


def test_c17_a_truncation_is_durable_before_anything_is_written_over() -> None:
    world = world_of(append(10, 10, 10), config=ROOMY)
    planned = world.log.plan_append(entries_from(2, 2, 20))
    assert step_names(planned.steps) == [*FOUR_STEPS[2:], *FOUR_STEPS]
    voided, again, proof = ledger_records(planned.steps)
    assert voided == again == Truncation(LogIndex(2), SegmentSeq(1), BlockCounter(1))
    assert proof == planned.receipt


def test_c17_the_proof_falls_back_at_once() -> None:
    world = world_of(append(10, 10, 10))
    world.log.plan_truncate(LogIndex(2))
    assert world.log.durable == DurabilityRecord(Term(1), LogIndex(1), SegmentSeq(1))
    assert (world.log.last_index, world.log.last_term) == (1, 1)


def test_c17_a_receipt_of_what_was_truncated_since_proves_nothing() -> None:
    """Two plans are out: the second voids what the first wrote."""
    world = world_of(append(10))
    first = world.log.plan_append(entries_from(2, 1, 10, 10))
    second = world.log.plan_truncate(LogIndex(2))
    world.disk.execute(first.steps + second)
    world.log.stored(first.receipt)
    assert world.log.durable_index == 1


def test_c17_two_batches_in_flight_and_the_second_replaces_the_first() -> None:
    """Else the log would attest entry 3 of the new leader before it was ever written."""
    world = world_of(append(10))
    first = world.log.plan_append(entries_from(2, 1, 10, 10))
    second = world.log.plan_append(entries_from(2, 2, 10))
    world.disk.execute(first.steps)
    world.log.stored(first.receipt)
    assert world.log.durable_index == 1
    world.disk.execute(second.steps)
    world.log.stored(second.receipt)
    assert world.log.durable == second.receipt
    world.log.plan_append(entries_from(3, 2, 10))
    assert world.log.durable_index == 2


def test_nothing_is_ever_written_over() -> None:
    world = World.new()
    written: dict[str, int] = {}
    rng = Random(5)
    for tag in range(80):
        plan, done, _ = draw_operation(rng, tag)(world)
        for step in plan:
            if (
                isinstance(step, WriteFile)
                and segment_seq_of(step.file.rpartition("/")[2]) is not None
            ):
                assert step.offset >= written.get(step.file, 0)
                written[step.file] = step.offset + len(step.data.rstrip(b"\0"))
        world.disk.execute(plan)
        done()


def test_what_is_committed_is_never_truncated() -> None:
    world = world_of(append(10, 10, 10))
    world.log.protect(LogIndex(2))
    world.log.protect(LogIndex(1))
    for refused in (1, 2):
        with pytest.raises(LogMisuse):
            world.log.plan_truncate(LogIndex(refused))
        with pytest.raises(LogMisuse):
            world.log.plan_append(entries_from(refused, 2, 5))
    run(world, overwrite(1, 20))
    check_after_crash(now(world))


# Refusals


def _plan_calls(log: Log) -> dict[str, Callable[[], object]]:
    modes = DurabilityMode.STRICT, DurabilityMode.GROUP_FSYNC
    return {
        "append": lambda: log.plan_append(entries_from(log.last_index + 1, 1, 10)),
        "truncate": lambda: log.plan_truncate(log.last_index),
        "transition": lambda: log.plan_transition(
            Term(1), LogIndex(1), *modes, DurabilityModeEpoch(9)
        ),
        "seal": log.plan_seal,
        "compact": lambda: log.plan_compact(LogIndex(1)),
        "install": lambda: log.plan_install(LogIndex(100), Term(9)),
    }


def test_a_fenced_log_refuses_every_plan() -> None:
    world = world_of(append(10, 10))
    world.log.fence("a sync failed", file="wal")
    world.log.fence("another reason")
    for name, call in _plan_calls(world.log).items():
        with pytest.raises(LogFenced) as refusal:
            call()
        assert refusal.value.reason == "a sync failed", name
        assert refusal.value.facts == {"file": "wal"}
    assert read_back(world.disk, world.keys, world.log) == world.contents


def _entry(index: int, term: int, size: int = 1) -> Entry:
    return Entry(Term(term), LogIndex(index), bytes(size))


# On a log that holds entries 1 to 3 in terms 1, 2, 2 behind base 0.
MISUSES: dict[str, Callable[[Log], object]] = {
    "empty append": lambda log: log.plan_append([]),
    "gap": lambda log: log.plan_append([_entry(5, 2)]),
    "index 0": lambda log: log.plan_append([_entry(0, 2)]),
    "gap within": lambda log: log.plan_append([_entry(4, 2), _entry(6, 2)]),
    "same index twice": lambda log: log.plan_append([_entry(4, 2), _entry(4, 2)]),
    "term before the last": lambda log: log.plan_append([_entry(4, 1)]),
    "terms fall within": lambda log: log.plan_append([_entry(4, 3), _entry(5, 2)]),
    "term before the one kept": lambda log: log.plan_append([_entry(3, 1)]),
    "too large": lambda log: log.plan_append([_entry(4, 2, FRAME_BODY_BYTES_MAX - 15)]),
    "too large behind a good one": lambda log: log.plan_append(
        [_entry(4, 2), _entry(5, 2, FRAME_BODY_BYTES_MAX)]
    ),
    "truncate nothing": lambda log: log.plan_truncate(LogIndex(4)),
    "truncate into the snapshot": lambda log: log.plan_truncate(LogIndex(0)),
    "compact what is not there": lambda log: log.plan_compact(LogIndex(5)),
    "epoch does not rise": lambda log: log.plan_transition(
        Term(2),
        LogIndex(3),
        DurabilityMode.STRICT,
        DurabilityMode.GROUP_FSYNC,
        DurabilityModeEpoch(0),
    ),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_a_misuse_is_refused_and_leaves_no_trace(misuse: Callable[[Log], object]) -> None:
    world = world_of(append(10), append(10, 10, term=2), config=ROOMY)
    before = (world.log.last_index, world.log.last_term, world.log.durable)
    with pytest.raises(LogMisuse):
        misuse(world.log)
    assert (world.log.last_index, world.log.last_term, world.log.durable) == before
    planned = world.log.plan_append(entries_from(4, 2, 7))
    assert step_names(planned.steps) == FOUR_STEPS
    world.disk.execute(planned.steps)
    world.contents = (0, (*world.contents[1], (2, entries_from(4, 2, 7)[0].payload)))
    check_after_crash(now(world), ROOMY)


NO_CONFIGS = {
    "no reservation": {"reservation_blocks": 0},
    "too much of it": {"reservation_blocks": 8193},
    "tiny segments": {"segment_bytes": 4095},
}


@pytest.mark.parametrize("sizes", NO_CONFIGS.values(), ids=NO_CONFIGS.keys())
def test_sizes_that_cannot_work_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(LogMisuse):
        LogConfig(**sizes)  # type: ignore[arg-type]  # every size here is an int
