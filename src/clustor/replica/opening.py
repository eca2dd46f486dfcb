"""From what the disk holds to what a replica starts with; or why it must not start.

Everything that this replica will rely on is made durable again before it says a word: a killed
process leaves bytes that readers see and the disk does not have. So the mending plan rewrites
the hard state, lets the log prove its tail anew, and settles the authorisations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from clustor.log.errors import KeyUnavailable, LogError, UnsupportedFormat
from clustor.log.ledger import LedgerIdentity
from clustor.log.log import Log, create_log
from clustor.log.metadata import BOOT_RECORD_FILE, METADATA_FILE
from clustor.log.reader import read_entries
from clustor.log.recovery import Recovery, RecoveryFinding, recover
from clustor.log.segment import WAL_DIRECTORY, segment_seq_of
from clustor.log.steps import (
    FileName,
    MakeDirectory,
    Plan,
    Rename,
    Step,
    Storage,
    SyncDirectory,
    directory_of,
)
from clustor.log.types import (
    DurabilityModeEpoch,
    Entry,
    LogId,
    LogIndex,
    LogState,
    PartitionId,
    Term,
)
from clustor.raft.errors import DataLost
from clustor.raft.hard_state import HardState, MembershipAck
from clustor.raft.membership import Membership, membership_digest
from clustor.raft.memory_log import MemoryLog
from clustor.raft.types import NO_INDEX, NO_TERM, ReplicaIdentity, RoutingEpoch
from clustor.replica.chain import restore_newest
from clustor.replica.documents import (
    plan_hard_state,
    read_hard_state,
    read_identity,
)
from clustor.replica.errors import NoReplica, ReplicaDamaged, ReplicaExists
from clustor.replica.header import SnapshotHeader, adopt
from clustor.replica.machine import StateMachine, StreamMachine
from clustor.replica.settings import ReplicaSettings
from clustor.snapshot.authorization import AuthorizationLog, root_hash
from clustor.snapshot.catalog import Catalog, open_catalog, settle_catalog
from clustor.snapshot.errors import CorruptSnapshot, SnapshotInvalidated
from clustor.snapshot.importer import plan_finish_import
from clustor.snapshot.layout import (
    AUTHORIZATION_LOG,
    CHUNKS_DIRECTORY,
    INCOMING_DIRECTORY,
    INCOMING_MANIFEST,
    SNAPSHOT_DIRECTORY,
    is_manifest_directory,
)
from clustor.streams.metadata import STREAMS_DIRECTORY
from clustor.streams.opening import OpenedStore, StreamFinding, create_store, open_store
from clustor.streams.runs import PARTS_DIRECTORY
from clustor.streams.types import StoreId

SET_ASIDE_DIRECTORY = "set-aside"


@dataclass(slots=True)
class Opened:
    """What a replica starts with, and the plan that must be durable before it does."""

    identity: ReplicaIdentity
    hard: HardState
    log: Log
    view: MemoryLog
    catalog: Catalog
    machine: StateMachine
    plan: Plan
    writes_identity: bool  # the identity's file follows the plan
    findings: tuple[RecoveryFinding | StreamFinding, ...] = ()
    truncated_bytes: int = 0  # of a torn write, cut off
    streams: OpenedStore | None = None  # None: the machine has none; its plan is part of `plan`


def prepare_new(
    settings: ReplicaSettings,
    identity: ReplicaIdentity,
    partition: Storage,
    node: Storage,
    bootstrap: Membership | None,
) -> Opened:
    """Plan a new replica. Its identity comes last: without it there is none yet."""
    if read_identity(node) is not None:
        raise ReplicaExists("a replica was created here before", replica_id=identity.replica_id)
    _require_unused(partition)
    config = bootstrap or Membership()
    ack = MembershipAck(RoutingEpoch(0), membership_digest(config), DurabilityModeEpoch(0))
    hard = HardState(membership=config, membership_ack=ack)
    return _empty(settings, identity, hard, ())


def _require_unused(partition: Storage) -> None:
    """What an interrupted creation leaves holds no entry and no term."""
    hard = read_hard_state(partition)
    written = any(segment_seq_of(name) is not None for name in partition.names(WAL_DIRECTORY))
    if written or (hard is not None and hard.term > NO_TERM):
        raise ReplicaDamaged("the identity is gone, and the data is not")


def _empty(
    settings: ReplicaSettings,
    identity: ReplicaIdentity,
    hard: HardState,
    before: Plan,
) -> Opened:
    log, create = create_log(
        LedgerIdentity(identity.partition_id, identity.log_id),
        settings.keys,
        settings.log_config,
        settings.io_writer_mode,
    )
    machine = settings.new_machine()
    streams = _new_streams(settings, identity.partition_id, machine, NO_INDEX)
    return Opened(
        identity,
        hard,
        log,
        MemoryLog(),
        _no_snapshots(identity.partition_id),
        machine,
        (*plan_hard_state(hard), *before, *create, *_plan_of(streams)),
        writes_identity=True,
        streams=streams,
    )


def _new_streams(
    settings: ReplicaSettings, group: PartitionId, machine: StateMachine, base_index: LogIndex
) -> OpenedStore | None:
    """Plan the empty store of a machine that has streams."""
    if not isinstance(machine, StreamMachine):
        return None
    return create_store(
        group,
        StoreId(settings.entropy(16)),
        settings.keys,
        settings.stream_config,
        raft_index=base_index,
        memory=settings.stream_memory,
    )


def _plan_of(streams: OpenedStore | None) -> Plan:
    return () if streams is None else streams.plan


def prepare_fenced(settings: ReplicaSettings, identity: ReplicaIdentity) -> Opened:
    """Make what a replica stands on that must not work: nothing is read, nothing is planned."""
    empty = _empty(settings, identity, HardState(), ())
    return replace(empty, plan=(), writes_identity=False)


def _no_snapshots(partition_id: PartitionId) -> Catalog:
    start = root_hash(partition_id)
    return Catalog(AuthorizationLog(partition_id, (), (), start, file_exists=False), ())


def prepare_rejoin(
    settings: ReplicaSettings,
    partition: Storage,
    node: Storage,
    *,
    log_id: LogId,
    rejoin_epoch: RoutingEpoch,
) -> Opened:
    """Plan a start without the data that was here: empty, without a vote, nothing deleted.

    The hard state says so durably before the first file is moved. Its term and vote are kept
    where they can still be read; where they cannot, `rejoin_epoch` stands in for them.
    """
    known = _identity(node)
    try:
        hard = read_hard_state(partition) or HardState()
    except ReplicaDamaged:
        hard = HardState()
    if log_id == known.log_id:
        raise ReplicaDamaged("a new log needs a new id: its counters start at zero")
    hard = HardState(term=hard.term, voted_for=hard.voted_for, rejoin_epoch=rejoin_epoch)
    identity = replace(known, log_id=log_id)
    return _empty(settings, identity, hard, _plan_set_aside(partition))


def _plan_set_aside(partition: Storage) -> Plan:
    """Move every file of the log and its snapshots to a directory of its own."""
    number = len(partition.names(SET_ASIDE_DIRECTORY)) + 1
    steps: list[Step] = []
    directories: dict[str, None] = {}
    for file in _files(partition):
        target = FileName(f"{SET_ASIDE_DIRECTORY}/{number}/{file}")
        steps += (MakeDirectory(directory_of(target)), Rename(file, target))
        directories |= dict.fromkeys((directory_of(target), directory_of(file)))
    if not steps:
        return ()
    above = (f"{SET_ASIDE_DIRECTORY}/{number}", SET_ASIDE_DIRECTORY, "")
    return (*steps, *(SyncDirectory(name) for name in dict.fromkeys((*directories, *above))))


def _files(partition: Storage) -> Iterator[FileName]:
    """Name what a log and its snapshots may have left."""
    top = set(partition.names(""))
    for file in (METADATA_FILE, BOOT_RECORD_FILE):
        yield from (FileName(name) for name in (file, file + ".tmp") if name in top)
    below = [WAL_DIRECTORY, CHUNKS_DIRECTORY, INCOMING_DIRECTORY, PARTS_DIRECTORY]
    names = partition.names(SNAPSHOT_DIRECTORY)
    below += [f"{SNAPSHOT_DIRECTORY}/{name}" for name in names if is_manifest_directory(name)]
    for directory in below:
        yield from (FileName(f"{directory}/{name}") for name in partition.names(directory))
    for name in partition.names(STREAMS_DIRECTORY):
        if not PARTS_DIRECTORY.endswith(f"/{name}"):
            yield FileName(f"{STREAMS_DIRECTORY}/{name}")
    authorization = AUTHORIZATION_LOG.rpartition("/")[2]
    for name in (authorization, authorization + ".tmp"):
        if name in names:
            yield FileName(f"{SNAPSHOT_DIRECTORY}/{name}")


def prepare_open(settings: ReplicaSettings, partition: Storage, node: Storage) -> Opened:
    """Read everything, believe what is authentic, and plan what must be durable first.

    Raises NoReplica, DataLost (the disk is empty where data was), ReplicaDamaged, and
    KeyUnavailable or UnsupportedFormat, which say nothing about the data.
    """
    identity = _identity(node)
    hard = read_hard_state(partition)
    recovery = _recover(settings, partition)
    if hard is None or recovery is None:
        lost = "the hard state" if recovery is not None else "the log"
        raise DataLost("the disk is empty where data was", lost=lost, id=identity.replica_id)
    if recovery.state is not LogState.HEALTHY:
        raise ReplicaDamaged("the log is damaged", state=recovery.state, problem=recovery.problem)
    known, identity = identity, _identity_of(identity, recovery.log.identity, hard)
    try:
        catalog = open_catalog(partition, identity.partition_id)
        machine, header = _restore(settings, partition, catalog)
    except (CorruptSnapshot, SnapshotInvalidated) as error:
        raise ReplicaDamaged("the newest snapshot cannot be read", cause=str(error)) from error
    base = catalog.newest.manifest if catalog.newest is not None else None
    base_index, base_term = (base.base_index, base.base_term) if base else (NO_INDEX, NO_TERM)
    hard = hard if header is None else adopt(header, hard)
    settled = settle_catalog(catalog)
    install = _plan_base(recovery.log, base_index, base_term)
    streams = _open_streams(settings, partition, identity.partition_id, machine, base_index)
    view = MemoryLog(base_index, base_term)
    view.append(_entries_above(settings, partition, recovery.log, base_index))
    return Opened(
        identity,
        hard,
        recovery.log,
        view,
        settled.after,
        machine,
        (
            *plan_hard_state(hard),
            *recovery.plan,
            *settled.plan,
            *install,
            *_plan_tidy(partition),
            *_plan_of(streams),
        ),
        writes_identity=identity != known,
        findings=(*recovery.findings, *(streams.findings if streams is not None else ())),
        truncated_bytes=recovery.truncated_bytes,
        streams=streams,
    )


def _open_streams(
    settings: ReplicaSettings,
    partition: Storage,
    group: PartitionId,
    machine: StateMachine,
    base_index: LogIndex,
) -> OpenedStore | None:
    """Open the files that the snapshot at `base_index` speaks of: all of them, or none is used.

    A replica that has never had streams, of an earlier release, begins with an empty store.
    """
    if not isinstance(machine, StreamMachine):
        return None
    try:
        opened = open_store(
            partition, settings.keys, settings.stream_config, settings.stream_memory
        )
    except (KeyUnavailable, UnsupportedFormat):
        raise
    except LogError as error:
        raise ReplicaDamaged("the streams cannot be read", cause=str(error)) from error
    extents = list(machine.stream_extents())
    if opened is None:
        if extents:
            raise ReplicaDamaged("the streams are gone", partitions=len(extents))
        return _new_streams(settings, group, machine, base_index)
    store = opened.store
    for damage in opened.damaged.values():
        raise ReplicaDamaged("a stream is damaged", cause=str(damage.problem))
    lacking = store.lacking(extents)
    if lacking or store.durable_raft_index < base_index:
        raise ReplicaDamaged(
            "the streams end before the newest snapshot",
            durable_raft_index=store.durable_raft_index,
            snapshot_base_index=base_index,
            partitions=len(lacking),
        )
    store.reconcile(extents, base_index)
    store.forget_removed(base_index)
    return opened


def _identity(node: Storage) -> ReplicaIdentity:
    identity = read_identity(node)
    if identity is None:
        raise NoReplica("nothing was ever created here")
    return identity


def _identity_of(known: ReplicaIdentity, log: LedgerIdentity, hard: HardState) -> ReplicaIdentity:
    """Take the log's id where a rejoin was interrupted; otherwise both must agree."""
    if log.partition == known.partition_id and (hard.rejoining or log.log_id == known.log_id):
        return replace(known, log_id=log.log_id)
    raise ReplicaDamaged("this log is another replica's", partition=log.partition)


def _recover(settings: ReplicaSettings, partition: Storage) -> Recovery | None:
    try:
        return recover(partition, settings.keys, settings.log_config, settings.io_writer_mode)
    except (KeyUnavailable, UnsupportedFormat):
        raise
    except (LogError, UnicodeDecodeError) as error:
        raise ReplicaDamaged("the log cannot be read", cause=str(error)) from error


def _restore(
    settings: ReplicaSettings, partition: Storage, catalog: Catalog
) -> tuple[StateMachine, SnapshotHeader | None]:
    machine = settings.new_machine()
    return machine, restore_newest(machine, partition, catalog, settings.keys)


def _plan_base(log: Log, base_index: LogIndex, base_term: Term) -> Plan:
    """Plan to stand on the snapshot, if a crash interrupted its installation.

    A log that holds the snapshot's last entry goes on from there; any other is what the
    snapshot replaces, a suffix of an old term at the most.
    """
    if log.entries.base_index > base_index:
        raise ReplicaDamaged(
            "the log starts behind the newest snapshot",
            log_base_index=log.entries.base_index,
            snapshot_base_index=base_index,
        )
    if base_index <= log.last_index and log.entries.term_of(base_index) == base_term:
        return ()
    return log.plan_install(base_index, base_term)


def _entries_above(
    settings: ReplicaSettings, partition: Storage, log: Log, base_index: LogIndex
) -> list[Entry]:
    first = LogIndex(base_index + 1)
    return list(read_entries(partition, settings.keys, log.entries, first, log.last_index))


def _plan_tidy(partition: Storage) -> Plan:
    """Plan to give up an interrupted import: it is asked for anew, and its chunks are garbage."""
    waiting = INCOMING_MANIFEST.rpartition("/")[2] in partition.names(INCOMING_DIRECTORY)
    return plan_finish_import() if waiting else ()
