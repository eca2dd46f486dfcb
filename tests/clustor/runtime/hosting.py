"""One group on real files, driven by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from clustor.log.segment import SEGMENT_HEADER_BYTES
from clustor.log.types import PartitionId
from clustor.raft.membership import Membership
from clustor.raft.types import ReplicaId
from clustor.replica import ReplicaSettings, RequestId
from clustor.runtime.admission import FlowNumbers
from clustor.runtime.data_directory import DataDirectory
from clustor.runtime.disk import Disk
from clustor.runtime.group import HostedGroup
from tests.clustor.replica.harness import Cluster, put

ME, GROUP = ReplicaId(1), PartitionId(7)


class Host:
    """One group on real files, driven by hand."""

    def __init__(self, disk: Disk, data: DataDirectory, settings: ReplicaSettings) -> None:
        self.disk, self.now_ms = disk, 1_000
        self.group = HostedGroup(disk, GROUP, data.state(GROUP), data.identity(GROUP))
        self._settings = settings

    def open(self, held: str | None = None) -> HostedGroup:
        self.group.open(
            self._settings,
            ME,
            Membership(voters=frozenset({ME})),
            os.urandom,
            self.now_ms,
            flow=FlowNumbers(),
            held=held,
        )
        self.settle()
        return self.group

    def settle(self) -> None:
        """Carry out what the replica wants, until it wants nothing."""
        while True:
            replica = self.group.replica
            wanted = replica.take()
            works = wanted.disk
            if not works and not wanted.disk_reads and self.group.idle:
                return
            self.group.submit(works, alone=True)
            for read in wanted.disk_reads:
                replica.disk_read(read.token, read.job.run(self.group.storage))
            while not self.group.idle:
                for completion in self.disk.completions():
                    self.group.completed(completion)
                time.sleep(0)

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(2_000):
            if holds():
                return
            self.now_ms += 10
            self.group.replica.tick(self.now_ms)
            self.settle()
        raise AssertionError("never")


def filled(disk: Disk, data: DataDirectory) -> tuple[Host, ReplicaSettings]:
    """Make a group of one voter, and let it commit something."""
    settings = Cluster(1).settings()
    host = Host(disk, data, settings)
    replica = host.open().replica
    host.until(lambda: replica.leads)
    for number in range(5):
        replica.propose(RequestId(number), put(f"k{number}", "v" * 300))
        host.settle()
    host.group.close()
    return host, settings


def turn_bit(directory: Path) -> dict[str, bytes]:
    """Turn a bit of the oldest segment; return all files as they are then."""
    path = min((directory / "wal").glob("segment*.log"))
    content = bytearray(path.read_bytes())
    content[SEGMENT_HEADER_BYTES + 60] ^= 8
    path.write_bytes(content)
    return files(directory)


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
