"""The directory of a stopped broker, written by the real log writer, without a broker's minutes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from clustor.log.config import LogConfig
from clustor.log.types import Entry, IoWriterMode, LogIndex, Term
from clustor.raft.hard_state import HardState
from clustor.raft.membership import Membership
from clustor.raft.types import ReplicaId
from clustor.replica.batch import encode_batch
from clustor.replica.documents import plan_hard_state
from clustor.replica.jobs import frozen_map
from clustor.runtime.data_directory import STATE_DIRECTORY
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.disk import open_mode
from clustor.runtime.keys.store import KEYS_DIRECTORY, load_keyring
from clustor.runtime.partition_log import PartitionLog, open_partition_log
from clustor.runtime.pki.identity import NodeId, cluster_id
from quantum.archive.archiver import PrgArchiver
from quantum.archive.objects import open_objects
from quantum.archive.planning import CloseSegment, ReplicaLog, UpToDate
from quantum.archive.types import PrgId
from quantum.tenants.broker_file import TenantEntry, prepare_broker
from quantum.tenants.group_ids import group_of

TERM = Term(1)
ALONE = HardState(term=TERM, membership=Membership(frozenset({ReplicaId(1)})))


def state_of(root: Path, number: int) -> Path:
    """Return where a partition's log is."""
    directory = node_directory(root, NodeId(1)) / STATE_DIRECTORY
    return directory / str(group_of(0, number))


class LogDirectory:
    """`with LogDirectory(path, prgs=3) as logs: logs.append(0, [[command, …], …])`."""

    def __init__(
        self, root: Path, *, prgs: int = 3, tenant: str = "dev", segment_bytes: int = 16 << 20
    ) -> None:
        self.root = root
        self._tenant = tenant
        self._config = LogConfig(segment_bytes=segment_bytes)
        if not root.exists():
            now = datetime.now(UTC)
            prepare_cluster(root, cluster_id("dev"), nodes=1, base_port=9_000, groups=1, now=now)
            prepare_broker(root, TenantEntry(tenant, prgs))
        self._keys = load_keyring(root / KEYS_DIRECTORY)
        self._disk = open_mode(IoWriterMode.BLOCKING)
        self._logs: dict[int, PartitionLog] = {}
        for number in range(prgs):
            self._open(number)

    def _open(self, number: int) -> None:
        state = state_of(self.root, number)
        state.mkdir(parents=True, exist_ok=True)
        log = open_partition_log(
            self._disk, state, self._keys, self._config, create_as=group_of(0, number)
        )
        log.execute(plan_hard_state(ALONE))
        self._logs[number] = log

    def append(self, number: int, batches: Iterable[list[bytes]]) -> int:
        """Append one entry for each batch of commands, all in one write; return the last index."""
        log = self._logs[number]
        first = log.log.last_index + 1
        entries = [
            Entry(TERM, LogIndex(first + nth), encode_batch(commands))
            for nth, commands in enumerate(batches)
        ]
        log.append(entries)
        return log.log.last_index

    def last_index(self, number: int) -> int:
        return self._logs[number].log.last_index

    def compact(self, number: int, floor: int) -> None:
        """Delete the segments below an index, as if a snapshot covered them."""
        log = self._logs[number]
        log.execute(log.log.plan_compact(LogIndex(floor)))

    def archive(self, number: int, url: str) -> None:
        """Close the segment and archive all, as the broker's own archiver does."""
        log = self._logs[number]
        log.execute(log.log.plan_seal())
        partition, prg = group_of(0, number), PrgId(self._tenant, number)
        archiver = PrgArchiver(open_objects(url), self._keys, prg, partition, "dev")
        view = ReplicaLog(
            frozen_map(log.log.entries),
            frozenset(log.log.closed_segments()),
            log.log.last_index,
            leads=True,
            writer="node 1, term 1",
            log_bytes=0,
        )
        while not isinstance(archiver.step(view, log.storage, 1), UpToDate | CloseSegment):
            pass

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        self._disk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()
