"""Tasks read from real files and from memory: each alone, together everything; errors say where."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from clustor.log.types import Entry
from clustor.runtime.keys.store import create_keyring
from quantum.archive.types import IndexRange, PrgId
from quantum.broker import Broker, BrokerSettings, encode_publishes, encode_record
from quantum.lake.archive import DirectoryKeys, LogSource
from quantum.lake.errors import BadAddress, DamagedBlock, LakeError, LogGone, WrongKey
from quantum.lake.known_states import STATES_MAX, KnownStates
from quantum.lake.offsets import Offsets
from quantum.lake.opening import open_source
from quantum.lake.planner import BatchLimits, Cutting, OnGap, Task, plan
from quantum.lake.reader import confirm_gone, offer_of, read_task
from quantum.lake.refusals import EntryUnreadable
from quantum.lake.schema import GAP, LOGGED, MESSAGE
from quantum.lake.settings import tenant_entry
from quantum.tenants.broker_file import TenantEntry
from quantum.tenants.partition_settings import broker_settings
from tests.quantum.lake.log_directory import LogDirectory
from tests.quantum.lake.memory_source import MemorySource
from tests.quantum.lake.messages import batch, damage, fill, numbered, segments

COLUMNS = ["raft_index", "sub_index", "payload", "row_kind", "gap_through"]
FINE = Cutting(task_bytes=120, warmup_bytes_max=10_000)
A = PrgId("dev", 0)


def rows(
    source: LogSource,
    cutting: Cutting = FINE,
    on_gap: OnGap = OnGap.FAIL,
    broker: str | None = None,
) -> list[dict[str, object]]:
    offers = {
        prg: offer_of(source, prg, exact=cutting.exact, broker=broker) for prg in source.prgs()
    }
    _, tasks = plan(Offsets(), offers, BatchLimits(), cutting=cutting, on_gap=OnGap.ROW)
    for task in tasks:
        if task.is_gap:
            confirm_gone(source, task)
    if on_gap is OnGap.FAIL:
        plan(Offsets(), offers, BatchLimits(), cutting=cutting, on_gap=on_gap)
    batches: list[pa.RecordBatch] = []
    for task in tasks:
        elsewhere, alone = pickle.loads(pickle.dumps((source, task)))
        batches += read_task(elsewhere, alone, COLUMNS, broker=broker)
    return [row for each in batches for row in each.to_pylist()]


def payloads(found: list[dict[str, object]]) -> list[object]:
    return sorted(row["payload"] for row in found)  # type: ignore[type-var]


def source_at(var: Path, keys: Path | None = None) -> LogSource:
    return open_source(str(var), DirectoryKeys(str(keys or var)))


@pytest.mark.parametrize("cutting", [FINE, Cutting(), Cutting(task_bytes=50, exact=False)])
def test_tasks_together_are_the_whole_log(tmp_path: Path, cutting: Cutting) -> None:
    written = fill(tmp_path / "var")
    found = rows(source_at(tmp_path / "var"), cutting)
    assert payloads(found) == sorted(written)
    assert {row["row_kind"] for row in found} == {MESSAGE if cutting.exact else LOGGED}


def with_snapshot(at: int) -> MemorySource:
    source = MemorySource(tenants={"dev": TenantEntry("dev", 1)})
    source.append(A, [batch([payload]) for payload in numbered(1, 12)])
    broker = Broker(broker_settings(source.tenants["dev"], 0))
    for index in range(1, at + 1):
        broker.apply_batch(index, batch([b""]))
    source.snapshot(A, at, broker)
    return source


def test_behind_a_snapshot_rows_are_exact_and_before_it_they_are_not() -> None:
    source = with_snapshot(at=6)
    source.drop(A, range(1, 4))
    found = rows(source, on_gap=OnGap.ROW)
    kinds = [row["row_kind"] for row in found]
    assert kinds == [GAP, *[LOGGED] * 3, *[MESSAGE] * 6]
    assert (found[0]["raft_index"], found[0]["gap_through"]) == (1, 3)
    assert payloads(found[1:]) == numbered(4, 12)


def test_a_task_knows_what_the_entries_before_it_did() -> None:
    """A number that counted in one task is a repetition in the next."""
    source = MemorySource(tenants={"dev": TenantEntry("dev", 2)})
    passed = [
        encode_publishes(1, 1, 1, first, [encode_record(b"t", payload, 1, b"", 0, b"c", 1, 1)])
        for first, payload in [(1, b"a"), (2, b"b"), (2, b"b"), (3, b"c")]
    ]
    source.append(A, [[command] for command in passed])
    apart = Cutting(task_bytes=1, warmup_bytes_max=10_000)
    assert payloads(rows(source, apart)) == [b"a", b"b", b"c"]
    nowhere = list(read_task(source, Task(A, 3, 4, anchor=None), COLUMNS))
    assert nowhere[0].column("payload").to_pylist() == [b"b", b"c"]


class CountingSource(MemorySource):
    """Counts what is read."""

    read = 0

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        for entry in super().entries(span):
            self.read += 1
            yield entry


def counting(entries: int) -> CountingSource:
    source = CountingSource(tenants={"dev": TenantEntry("dev", 1)})
    source.append(A, [batch([payload]) for payload in numbered(1, entries)])
    return source


def read_known(source: MemorySource, states: KnownStates, first: int, last: int) -> list[object]:
    task = Task(A, first, last, anchor=0)
    found = read_task(source, task, ["payload"], known=(states, "dev"))
    return [row["payload"] for each in found for row in each.to_pylist()]


def test_a_process_that_remembers_reads_less_and_the_same() -> None:
    source, states = counting(entries=60), KnownStates()
    assert read_known(source, states, 1, 20) == numbered(1, 20)
    source.read = 0
    assert read_known(source, states, 31, 40) == numbered(31, 40)
    assert source.read == 1 + 20, "the entry before, what was skipped, and what was asked for"
    assert read_known(source, states, 41, 60) == numbered(41, 60)
    source.read = 0
    assert read_known(source, states, 11, 20) == numbered(11, 20), "back again, from the anchor"
    assert source.read == 20
    assert read_known(source, states, 16, 25) == numbered(16, 25), "into the middle of what it read"


def test_a_memory_of_another_log_is_not_used() -> None:
    states = KnownStates()
    read_known(counting(entries=20), states, 1, 20)
    other = counting(entries=0)
    other.append(A, [batch([payload, payload]) for payload in numbered(1, 30)])
    other.read = 0
    assert len(read_known(other, states, 21, 30)) == 20
    assert other.read == 1 + 30


def test_few_states_are_remembered() -> None:
    source, states = counting(entries=2), KnownStates()
    for nth in range(STATES_MAX + 5):
        list(read_task(source, Task(A, 1, 1, anchor=0), known=(states, str(nth))))
    assert states.take("0", 0, 2) is None
    assert states.take(str(STATES_MAX + 4), 0, 2) is not None


def test_a_snapshot_that_went_away_is_named() -> None:
    source = with_snapshot(at=6)
    task = Task(A, 8, 9, anchor=6)
    assert len(list(read_task(source, task))) == 1
    source.states.clear()
    with pytest.raises(LogGone, match="plan again") as caught:
        list(read_task(source, task))
    assert (caught.value.prg, caught.value.index) == (A, 6)


def test_a_damaged_snapshot_is_named() -> None:
    source = with_snapshot(at=6)
    source.states[A, 6] = source.states[A, 6][:-3]
    with pytest.raises(LakeError) as caught:
        list(read_task(source, Task(A, 8, 9, anchor=6)))
    assert (caught.value.prg, caught.value.index) == (A, 6)


def test_without_the_brokers_numbers_rows_are_not_exact(tmp_path: Path) -> None:
    source = MemorySource()
    source.append(A, [batch(numbered(1, 3))])
    assert {row["row_kind"] for row in rows(source)} == {LOGGED}
    fill(tmp_path / "var")
    described = str(tmp_path / "var" / "broker.json")
    assert {row["row_kind"] for row in rows(source, broker=described)} == {MESSAGE}
    with pytest.raises(BadAddress, match="describes the tenant"):
        tenant_entry(source, PrgId("acme", 0), described)


# What goes wrong, and that it goes on.


def test_a_damaged_block(tmp_path: Path) -> None:
    var = tmp_path / "var"
    written = fill(var)
    segment, whole = damage(var, 1)
    with pytest.raises(DamagedBlock) as caught:
        rows(source_at(var))
    assert str(caught.value.prg) == "dev/1"
    segment.write_bytes(whole)
    assert payloads(rows(source_at(var))) == sorted(written)


def test_damage_that_comes_between_plan_and_read_names_the_entry(tmp_path: Path) -> None:
    var = tmp_path / "var"
    with LogDirectory(var, prgs=1) as logs:
        for payload in numbered(1, 9):
            logs.append(0, [batch([payload])])
    source = source_at(var)
    offer = offer_of(source, A)
    damage(var, 0)
    with pytest.raises(DamagedBlock) as caught:
        list(read_task(source, Task(A, 1, offer.bounds.last, anchor=0)))
    assert caught.value.prg == A
    assert caught.value.index in range(2, 10)


def test_damage_is_never_written_down_as_a_gap(tmp_path: Path) -> None:
    var = tmp_path / "var"
    fill(var, prgs=1)
    damage(var, 0)
    source = source_at(var)
    bounds = source.bounds(A)
    with pytest.raises(DamagedBlock) as caught:
        list(read_task(source, Task(A, bounds.pieces[-1].last + 1, bounds.last, is_gap=True)))
    assert (caught.value.prg, caught.value.index) == (A, bounds.pieces[-1].last + 1)


def test_a_gap_that_is_none_is_refused() -> None:
    source = with_snapshot(at=6)
    with pytest.raises(EntryUnreadable, match="where it has an entry"):
        list(read_task(source, Task(A, 2, 3, is_gap=True)))


def test_a_missing_segment(tmp_path: Path) -> None:
    var = tmp_path / "var"
    with LogDirectory(var, prgs=1, segment_bytes=1 << 20) as logs:
        for _ in range(6):
            logs.append(0, [batch([bytes(400_000)])])
    gone = segments(var, 0)[1]
    kept = gone.read_bytes()
    gone.unlink()
    with pytest.raises(LakeError) as caught:
        rows(source_at(var))
    assert caught.value.prg == A
    gone.write_bytes(kept)
    assert len(rows(source_at(var))) == 6


def test_the_wrong_key(tmp_path: Path) -> None:
    fill(tmp_path / "var")
    create_keyring(tmp_path / "other")
    with pytest.raises((WrongKey, DamagedBlock)) as caught:
        rows(source_at(tmp_path / "var", tmp_path / "other"))
    assert caught.value.prg == A
    with pytest.raises(WrongKey):
        rows(source_at(tmp_path / "var", tmp_path / "nothing"))


def test_settings_are_the_brokers_own(tmp_path: Path) -> None:
    fill(tmp_path / "var")
    entry = tenant_entry(source_at(tmp_path / "var"), A, None)
    assert entry == TenantEntry("dev", 2)
    assert isinstance(broker_settings(entry, 0), BrokerSettings)
