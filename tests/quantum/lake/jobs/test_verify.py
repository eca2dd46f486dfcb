"""`verify`: it says that a table equals its log, and names the row where it does not."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quantum.archive.types import PrgId
from quantum.lake.jobs.verify import TableVerdict, verify
from quantum.lake.table import DataFile, FileKind, Table, TableDamaged
from tests.quantum.lake.jobs.logs import TENANT, MemorySource
from tests.quantum.lake.jobs.tables import filled
from tests.quantum.lake.jobs.test_ingest import story
from tests.quantum.lake.table.stores import MemoryStore


def kinds(verdict: TableVerdict) -> set[str]:
    found = [each for partition in verdict.partitions for each in partition.findings]
    return {each.kind for each in (*found, *verdict.strays)}


@pytest.fixture
def log() -> MemorySource:
    return story()[0]


@pytest.fixture
def store(log: MemorySource) -> MemoryStore:
    store = MemoryStore()
    filled(log, store, entries=4)
    return store


def test_an_honest_table_equals_its_log(log: MemorySource, store: MemoryStore) -> None:
    verdict = verify(log, store)
    assert verdict.is_equal
    assert verdict.is_whole
    assert sum(each.rows_log for each in verdict.partitions) == 11
    assert verdict.partitions[0].digest == log.machine(0).digest().hex()


def test_the_root_depends_on_the_rows_alone(log: MemorySource, store: MemoryStore) -> None:
    other = MemoryStore()
    filled(log, other, entries=1)
    assert verify(log, other).root == verify(log, store).root
    log.publish(1, b"more")
    filled(log, other)
    assert verify(log, other).root != verify(log, store).root


def rewrite(
    store: MemoryStore, change: Callable[[pa.Table], pa.Table], *, quietly: bool
) -> DataFile:
    """Change a committed file of two rows and more; `quietly` keeps commit and digest in step."""
    files = Table.open(store).state.of_kind(FileKind.ROWS)
    file = next(each for each in files if each.rows > 1)
    table = pq.read_table(BytesIO(store.files[file.path]))
    buffer = BytesIO()
    pq.write_table(change(table), buffer)
    store.files[file.path] = buffer.getvalue()
    if quietly:
        forge_digest(store, file, buffer.getvalue())
    return file


def forge_digest(store: MemoryStore, file: DataFile, data: bytes) -> None:
    """Rewrite the whole history so that it agrees with the changed file."""
    from blake3 import blake3

    parent = "0" * 64
    for name in sorted(each for each in store.files if each.startswith("_quantum_log/")):
        text = store.files[name].decode().replace(file.digest, blake3(data).hexdigest())
        at = text.index('"parent":"') + len('"parent":"')
        text = text[:at] + parent + text[at + 64 :]
        store.files[name] = text.encode()
        parent = blake3(store.files[name]).hexdigest()


def altered(table: pa.Table) -> pa.Table:
    payloads = table.column("payload").to_pylist()
    at = table.schema.get_field_index("payload")
    return table.set_column(at, "payload", pa.array([b"forged", *payloads[1:]], pa.binary()))


def doubled(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 1), table])


@pytest.mark.parametrize("quietly", [False, True], ids=["plainly", "quietly"])
@pytest.mark.parametrize(
    ("change", "kind", "count"),
    [
        (lambda table: table.slice(1), "missing", "missing"),
        (altered, "different", "different"),
        (doubled, "extra", "extra"),
    ],
    ids=["deleted", "altered", "doubled"],
)
def test_a_planted_difference_is_named(
    log: MemorySource,
    store: MemoryStore,
    change: Callable[[pa.Table], pa.Table],
    kind: str,
    count: str,
    quietly: bool,
) -> None:
    file = rewrite(store, change, quietly=quietly)
    verdict = verify(log, store)
    assert not verdict.is_equal
    assert kinds(verdict) == ({kind} if quietly else {kind, "file"})
    broken = next(each for each in verdict.partitions if each.prg == file.stream)
    assert getattr(broken, count) == 1
    named = next(each for each in broken.findings if each.kind == kind)
    assert (named.raft_index, named.sub_index) == (file.first, 0)
    assert broken.root_log != broken.root_table


def test_a_file_that_is_gone_is_named(log: MemorySource, store: MemoryStore) -> None:
    file = Table.open(store).state.of_kind(FileKind.ROWS)[0]
    del store.files[file.path]
    verdict = verify(log, store)
    assert kinds(verdict) == {"file", "missing"}


def test_a_duplicated_file_is_found(log: MemorySource, store: MemoryStore) -> None:
    """Readers of the table do not see it, plain readers would."""
    file = Table.open(store).state.of_kind(FileKind.ROWS)[0]
    store.files[f"{file.place}/copy.parquet"] = store.files[file.path]
    store.modified_ms[f"{file.place}/copy.parquet"] = 0
    verdict = verify(log, store)
    assert not verdict.is_equal
    assert [each.kind for each in verdict.strays] == ["stray"]
    assert file.path in verdict.strays[0].sentence


def test_a_duplicated_file_in_the_log_is_refused(store: MemoryStore, log: MemorySource) -> None:
    name = max(each for each in store.files if each.startswith("_quantum_log/"))
    following = f"_quantum_log/{int(name[13:33]) + 1:020d}.json"
    store.files[following] = store.files[name]
    with pytest.raises(TableDamaged):
        verify(log, store)


def test_another_log_is_another_log(log: MemorySource, store: MemoryStore) -> None:
    entries = log.logs[PrgId(TENANT, 1)]
    other = MemorySource()
    other.now_ms = log.now_ms
    other.publish(1, b"x")
    entries[1] = type(entries[1])(
        entries[1].term, entries[1].index, other.logs[PrgId(TENANT, 1)][0].payload
    )
    verdict = verify(log, store)
    assert kinds(verdict) == {"different", "state"}


def test_what_the_source_cannot_judge_is_said(log: MemorySource, store: MemoryStore) -> None:
    log.snapshot_and_compact(0, 5)
    verdict = verify(log, store)
    assert verdict.is_equal
    assert not verdict.is_whole
    assert verdict.partitions[0].uncompared == [(1, 5)]
    log.bases[PrgId(TENANT, 1)] = 2
    assert verify(log, store).partitions[1].uncompared == [(1, 2)]


def test_a_forged_state_digest_is_found(log: MemorySource, store: MemoryStore) -> None:
    state = Table.open(store).state
    name = max(each for each in store.files if each.startswith("_quantum_log/"))
    digest = next(iter(state.digests.values()))
    store.files[name] = store.files[name].replace(digest.encode(), b"00" + digest[2:].encode())
    assert kinds(verify(log, store)) == {"state"}
