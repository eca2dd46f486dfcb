"""A real log on a real disk, and what an archiver sees of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from clustor.log.config import LogConfig
from clustor.log.keys import KeyRing
from clustor.log.types import Entry, EntryKind, IoWriterMode, LogIndex, PartitionId, Term
from clustor.replica.batch import encode_batch
from clustor.replica.jobs import frozen_map
from clustor.runtime.disk.detect import open_mode
from clustor.runtime.keys.store import KEYS_DIRECTORY, create_keyring, load_keyring
from clustor.runtime.partition_log import open_partition_log
from clustor.snapshot.catalog import (
    open_catalog,
    plan_acknowledge,
    plan_authorize,
    relist,
    settle_catalog,
)
from clustor.snapshot.emission import plan_snapshot
from quantum.archive import Objects, PrgArchiver, PrgId, ReplicaLog
from quantum.archive.archiver import Passing
from quantum.archive.planning import (
    ArchiveSegment,
    ArchiveSnapshot,
    CloseSegment,
    UpToDate,
)
from quantum.broker.commands import Elapse, encode_command

PRG = PrgId("dev", 0)
PARTITION = PartitionId(1000)
CLUSTER = "birth-of-a-test"
FIRST_MS = 1_700_000_000_000


def keys_at(directory: Path) -> KeyRing:
    """Return the keys below a directory, made where there are none."""
    if (directory / KEYS_DIRECTORY).exists():
        return load_keyring(directory / KEYS_DIRECTORY)
    return create_keyring(directory)


def entry(index: int, term: int, body: bytes = b"") -> Entry:
    """An entry whose only command says the time by its index."""
    payload = encode_batch([encode_command(Elapse(FIRST_MS + index)), b"\x91" + body])
    return Entry(Term(term), LogIndex(index), payload, EntryKind.DATA)


def entries(first: int, last: int, term: int = 1, body_bytes: int = 40) -> list[Entry]:
    return [entry(index, term, bytes(body_bytes)) for index in range(first, last + 1)]


class LogBox:
    """One replica's log. `committed` is what the test says it is."""

    def __init__(self, root: Path, keys: KeyRing, segment_bytes: int = 1 << 16) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.keys = keys
        self.opened = open_partition_log(
            open_mode(IoWriterMode.BLOCKING),
            root,
            keys,
            LogConfig(segment_bytes=segment_bytes),
            create_as=PARTITION,
        )
        self.committed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()

    def append(self, batch: Sequence[Entry], *, commit: bool = True) -> None:
        self.opened.append(batch)
        if commit:
            self.committed = batch[-1].index

    def seal(self) -> None:
        self.opened.execute(self.opened.log.plan_seal())

    def compact(self, floor: int) -> None:
        self.opened.execute(self.opened.log.plan_compact(LogIndex(floor)))

    def emit(self, index: int, content: bytes) -> None:
        """Emit and authorise a snapshot at an index."""
        from tests.clustor.snapshot.support import SIGNER, request  # slow: children go without

        storage, run = self.opened.storage, self.opened.execute
        settled = settle_catalog(open_catalog(storage, PARTITION))
        run(settled.plan)
        wanted = request(index, index, chunk_bytes=4096)
        pieces = iter([content])
        emission = plan_snapshot(settled.after, wanted, pieces, keys=self.keys, signer=SIGNER)
        for plan in emission:
            run(plan)
        run(emission.plan_manifest(settled.after))
        assert emission.manifest is not None
        proof = relist(storage, emission.manifest, emission.generation)
        change = plan_authorize(settled.after, proof, since_full_ms=0)
        run(change.plan)
        run(plan_acknowledge(change.after).plan)

    def view(self, writer: str = "node 1, term 1") -> ReplicaLog:
        log = self.opened.log
        return ReplicaLog(
            frozen_map(log.entries),
            frozenset(log.closed_segments()),
            self.committed,
            leads=True,
            writer=writer,
            log_bytes=0,
            snapshots=open_catalog(self.opened.storage, PARTITION).snapshots,
        )

    def archiver(self, objects: Objects, passing: Passing = lambda _: None) -> PrgArchiver:
        return PrgArchiver(objects, self.keys, PRG, PARTITION, CLUSTER, passing=passing)

    def archive(self, objects: Objects, passing: Passing = lambda _: None) -> PrgArchiver:
        """Archive all that is closed."""
        archiver = self.archiver(objects, passing)
        while True:
            following = archiver.step(self.view(), self.opened.storage, FIRST_MS)
            if isinstance(following, UpToDate | CloseSegment):
                return archiver
            assert isinstance(following, ArchiveSegment | ArchiveSnapshot), following
