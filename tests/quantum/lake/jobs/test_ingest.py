"""`ingest`: what the broker took becomes a row, once, however the log is cut and whoever dies."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quantum.archive.types import PrgId
from quantum.broker import Attach, Detach, WillSpec
from quantum.lake.errors import LogGone
from quantum.lake.jobs.compact import compact
from quantum.lake.jobs.errors import StateUnknown
from quantum.lake.jobs.ingest import IngestSettings, ingest, plan_batch, proposal_of, write_task
from quantum.lake.jobs.verify import verify
from quantum.lake.planner import BatchLimits, Cutting, OnGap
from quantum.lake.refusals import OffsetAhead, UnknownSchemaVersion
from quantum.lake.table import (
    DirectoryStore,
    FileKind,
    RangeTaken,
    Table,
    TableDamaged,
    TableState,
)
from tests.quantum.lake.jobs.logs import DAY_MS, TENANT, MemorySource, record
from tests.quantum.lake.jobs.tables import filled, payloads, rows
from tests.quantum.lake.table.stores import Crash, DyingStore, MemoryStore


def story() -> tuple[MemorySource, list[bytes]]:
    """Write a log in which everything that is no message, or comes twice, occurs.

    Returns the messages that were acknowledged, in the order of partitions and offsets.
    """
    log = MemorySource()
    log.publish(0, b"a", b"b")
    log.no_op(0)
    log.pass_on(0, 1, 5, 1, b"p1", b"p2")
    log.attach(0, "lasting")
    log.once(0, "lasting", (1, b"q1"), (2, b"q2"))
    log.pass_on(0, 1, 5, 1, b"p1", b"p2", b"p3")  # the link broke: two of them again
    log.once(0, "lasting", (1, b"q1"))  # the client came back: again
    log.pass_on(0, 1, 5, 9, b"p9")  # behind a gap: never answered
    log.release(0, "lasting", 1)
    log.once(0, "lasting", (1, b"q3"))  # the packet id is free: another message
    log.pass_on(0, 1, 6, 1, b"p4")  # a new leader counts anew
    log.pass_on(0, 1, 5, 4, b"p5")  # a deposed one does not count
    log.publish(1, b"c")
    log.publish(1, b"c")  # QoS 1 again after a reconnect: the broker took it twice
    accepted = [b"a", b"b", b"p1", b"p2", b"q1", b"q2", b"p3", b"q3", b"p4", b"c", b"c"]
    return log, accepted


@pytest.mark.parametrize("entries", [None, 5, 3, 2, 1])
def test_what_the_broker_took_becomes_a_row_once(entries: int | None) -> None:
    """Also where a repetition lands in a later batch than what it repeats."""
    log, accepted = story()
    store = MemoryStore()
    report = filled(log, store, entries=entries)
    assert payloads(store) == accepted
    assert report.rows == len(accepted)
    assert {row["row_kind"] for row in rows(store)} == {"message"}


def test_a_second_run_adds_nothing_and_a_longer_log_only_what_is_new() -> None:
    log, accepted = story()
    store = MemoryStore()
    filled(log, store)
    version = Table.open(store).state.version
    assert filled(log, store).commits == 0
    assert Table.open(store).state.version == version
    log.publish(1, b"d")
    filled(log, store)
    assert payloads(store) == [*accepted, b"d"]


def test_refused_publishes_have_no_row() -> None:
    """A full queue refuses its topic: what was not acknowledged is not in the table."""
    log = MemorySource(prg_count=1, queue_messages_max=2)
    log.attach(0, "slow")
    log.subscribe(0, "slow", "t")
    for payload in (b"1", b"2", b"3", b"4"):
        log.publish(0, payload)
    store = MemoryStore()
    filled(log, store, entries=1)
    assert payloads(store) == [b"1", b"2"]


def test_the_commits_keep_the_machine_of_the_log() -> None:
    log, _ = story()
    store = MemoryStore()
    filled(log, store, entries=3)
    state = Table.open(store).state
    for number in (0, 1):
        assert state.digests[stream(number)] == log.machine(number).digest().hex()
    assert len(state.of_kind(FileKind.STATE)) == 2


def stream(number: int) -> Any:
    return f"{TENANT}/{number}"


def test_a_log_that_was_compacted_meanwhile_is_read_on() -> None:
    log, accepted = story()
    whole = list(log.logs[PrgId(TENANT, 0)])
    del log.logs[PrgId(TENANT, 0)][6:]
    store = MemoryStore()
    filled(log, store)
    log.logs[PrgId(TENANT, 0)] = whole
    log.bases[PrgId(TENANT, 0)] = 6
    filled(log, store)
    assert payloads(store) == accepted


def test_entries_that_are_gone_stop_the_job_or_are_named() -> None:
    log, _ = story()
    log.bases[PrgId(TENANT, 1)] = 1
    with pytest.raises(LogGone) as gone:
        filled(log, MemoryStore())
    assert (gone.value.first, gone.value.last) == (1, 1)
    with pytest.raises(StateUnknown):
        filled(log, MemoryStore(), on_gap=OnGap.ROW)
    store = MemoryStore()
    filled(log, store, on_gap=OnGap.ROW, loose=True)
    mine = [row for row in rows(store) if row["prg"] == 1]
    assert [(row["row_kind"], row["gap_through"], row["payload"]) for row in mine] == [
        ("gap", 1, None),
        ("logged", None, b"c"),
    ]


def test_a_table_can_begin_with_a_snapshot() -> None:
    log, accepted = story()
    log.snapshot_and_compact(0, 5)
    store = MemoryStore()
    filled(log, store, from_earliest=True, entries=2)
    assert payloads(store) == accepted[6:]


def test_a_long_log_is_read_by_several_tasks_at_once() -> None:
    """Each begins at a snapshot; all of them are one commit."""
    log, accepted = story()
    for index in (4, 8):
        log.snapshot_and_compact(0, index)
    log.bases.clear()
    settings = IngestSettings(cutting=Cutting(task_bytes=300, warmup_bytes_max=1))
    batch = plan_batch(log, TableState(), settings)
    assert [(task.prg.number, task.first, task.last, task.anchor) for task in batch.tasks] == [
        (0, 1, 4, 0),
        (0, 5, 8, 4),
        (0, 9, 12, 8),
        (1, 1, 2, 0),
    ]
    store = MemoryStore()
    assert ingest(log, store, settings=settings).commits == 1
    assert payloads(store) == accepted
    assert len(Table.open(store).state.of_kind(FileKind.STATE)) == 2


def test_the_source_may_shrink_never() -> None:
    log, _ = story()
    store = MemoryStore()
    filled(log, store)
    del log.logs[PrgId(TENANT, 1)][1:]
    with pytest.raises(OffsetAhead):
        filled(log, store)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_driver_that_dies_at_any_step_loses_and_adds_nothing(after: bool) -> None:
    log, accepted = story()
    for step in range(200):
        store = MemoryStore()
        dying = DyingStore(store, at_step=step, after=after)
        try:
            filled(log, dying, entries=6)
        except Crash:
            if store.files:
                done = (
                    payloads(store) if "_quantum_log/" + "0" * 20 + ".json" in store.files else []
                )
                assert len(done) == len(set(done)) + (done.count(b"c") > 1)
            filled(log, store, entries=6)
        assert payloads(store) == accepted, f"died at step {step}"
        if dying.survived:
            assert step > 10
            return
    pytest.fail("it never ended")


@pytest.mark.parametrize("seed", range(15))
def test_drivers_that_overlap_and_die_add_each_message_once(seed: int) -> None:
    """Several drivers plan and write from what they believe, and commit in any order."""
    log, accepted = story()
    rng = random.Random(seed)
    store = MemoryStore()
    filled(MemorySource(), store)
    waiting: list[tuple[Any, Any]] = []
    for _ in range(40):
        settings = IngestSettings(limits=BatchLimits(records=rng.randint(1, 5)))
        table = Table.open(store)
        batch = plan_batch(log, table.state, settings)
        if batch.tasks:
            written = [
                write_task(
                    log,
                    store,
                    settings,
                    batch.states,
                    batch.version,
                    (task, nth == len(batch.tasks) - 1 or batch.tasks[nth + 1].prg != task.prg),
                )
                for nth, task in enumerate(batch.tasks)
            ]
            waiting.append((table, proposal_of(table.state, batch.ranges, written)))
        rng.shuffle(waiting)
        while waiting and rng.random() < 0.6:
            driver, proposal = waiting.pop()
            with suppress(RangeTaken):
                driver.commit(proposal, at_ms=0)
    filled(log, store)
    assert payloads(store) == accepted, f"seed {seed}"


def test_a_zombie_driver_is_refused() -> None:
    log, accepted = story()
    store = MemoryStore()
    zombie = Table.create(store, schema_version=1, at_ms=0)
    batch = plan_batch(log, zombie.state, IngestSettings())
    written = [
        write_task(log, store, IngestSettings(), {}, 1, (task, True)) for task in batch.tasks
    ]
    proposal = proposal_of(zombie.state, batch.ranges, written)
    filled(log, store, entries=3)
    with pytest.raises(RangeTaken):
        zombie.commit(proposal, at_ms=0)
    assert payloads(store) == accepted


def test_days_have_files_of_their_own(tmp_path: Path) -> None:
    log = MemorySource(prg_count=1)
    log.publish(0, b"today")
    log.now_ms += DAY_MS
    log.publish(0, b"tomorrow")
    store = DirectoryStore(tmp_path)
    filled(log, store)
    places = sorted(file.place for file in Table.open(store).state.of_kind(FileKind.ROWS))
    assert places == ["tenant=dev/date=2026-11-15", "tenant=dev/date=2026-11-16"]
    assert len(list(tmp_path.glob("tenant=dev/date=*/*.parquet"))) == 2


def test_a_kept_machine_that_was_changed_is_not_believed() -> None:
    log, _ = story()
    store = MemoryStore()
    filled(log, store)
    kept = Table.open(store).state.of_kind(FileKind.STATE)[0]
    store.files[kept.path] = store.files[kept.path][:-1] + b"\0"
    log.publish(0, b"more")
    with pytest.raises(TableDamaged):
        filled(log, store)


def test_rows_carry_the_idempotence_key_of_section_4_7() -> None:
    log, _ = story()
    store = MemoryStore()
    filled(log, store)
    keys = [
        tuple(row[name] for name in KEY) for row in rows(store) if row["forward_seq"] is not None
    ]
    assert len(keys) == 4
    assert len(set(keys)) == len(keys)
    first = msgspec.structs.asdict(Table.open(store).history()[1])
    assert first["ranges"]


KEY = ("tenant", "origin_prg", "origin_term", "session_epoch", "message_id", "forward_seq")


def test_continuous_mode_stops_when_told() -> None:
    log, accepted = story()
    store = MemoryStore()
    waited: list[bool] = []

    def wait() -> None:
        if not waited:
            log.publish(0, b"later")
        waited.append(True)

    report = ingest(log, store, once=False, should_stop=lambda: len(waited) > 1, wait=wait)
    assert report.rows == len(accepted) + 1
    assert b"later" in payloads(store)


@pytest.mark.parametrize("entries", [1, 3, 100])
def test_once_is_what_is_there_however_much_comes_meanwhile(entries: int) -> None:
    log, accepted = story()
    store = MemoryStore()
    settings = IngestSettings(limits=BatchLimits(records=entries))

    def publish(_: Table) -> None:
        log.publish(0, b"meanwhile")
        log.logs.setdefault(PrgId(TENANT, 2), []).append(log.logs[PrgId(TENANT, 0)][0])

    report = ingest(log, store, settings=settings, after_commit=publish)
    assert payloads(store) == accepted
    assert report.offsets.keys() == {f"{TENANT}/0", f"{TENANT}/1"}
    log.logs.pop(PrgId(TENANT, 2))
    ingest(log, store)
    assert sorted(payloads(store)) == sorted([*accepted, *[b"meanwhile"] * report.commits])


def with_a_will() -> MemorySource:
    log = MemorySource(prg_count=1)
    will = WillSpec(record("gone", b"w", client="c", packet_id=0), 0)
    log.append(0, Attach(log.now_ms, b"c", clean_start=True, expiry_seconds=0, window=1, will=will))
    log.publish(0, b"a")
    log.append(0, Detach(log.now_ms, b"c", 1, gracefully=False))
    log.publish(0, b"b")
    return log


@pytest.mark.parametrize(("version", "wanted"), [(1, [b"a", b"b"]), (2, [b"a", b"w", b"b"])])
def test_a_table_stays_of_the_version_that_it_was_made_with(
    version: int, wanted: list[bytes]
) -> None:
    log, store = with_a_will(), MemoryStore()
    Table.create(store, schema_version=version, at_ms=0)
    filled(log, store, entries=1)
    assert payloads(store) == wanted
    compact(store, files_min=2)
    assert Table.open(store).state.schema_version == version
    verdict = verify(log, store)
    assert (verdict.is_equal, verdict.is_whole) == (True, True)
    assert payloads(store) == wanted


def test_a_table_of_a_later_release_is_left_alone() -> None:
    store = MemoryStore()
    Table.create(store, schema_version=3, at_ms=0)
    with pytest.raises(UnknownSchemaVersion):
        filled(with_a_will(), store)
    assert Table.open(store).state.version == 0
