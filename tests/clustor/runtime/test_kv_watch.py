"""A watch whose copy was too old is fed as soon as it is confirmed, though nothing else happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from clustor.log.types import IoWriterMode
from clustor.raft.control_plane import CacheState, ControlPlaneUpdate
from clustor.replica import RequestId
from clustor.runtime.data_directory import DataDirectory, open_data_directory
from clustor.runtime.disk import Disk, open_disk
from clustor.runtime.kv.service import KvService
from clustor.runtime.kv.stream import KvOperation, WatchRequest
from clustor.runtime.pki.identity import NodeId, cluster_id
from tests.clustor.replica.harness import Cluster, put
from tests.clustor.runtime.hosting import GROUP, Host


class Line:
    """A client's connection, as far as the service sees it."""

    writable = True

    def __init__(self) -> None:
        self.staged: list[bytes] = []

    def stage(self, reply: bytes) -> None:
        self.staged.append(reply)

    def release(self, count: int) -> None:
        """Nothing is counted here."""

    def flush(self) -> None:
        """Nothing is sent here."""


class Place:
    """A node with a control plane elsewhere, as far as the service sees it."""

    control: Any = type("Control", (), {"group": None})()

    def touch(self, group: object) -> None:
        """Nobody drives it."""


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDirectory]:
    found = open_data_directory(tmp_path / "node", cluster_id("dev"), NodeId(1))
    yield found
    found.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    found = open_disk(tmp_path, best=IoWriterMode.BLOCKING)
    yield found
    found.close()


def test_it_is_fed_once_its_copy_is_confirmed_and_not_at_the_next_write(
    disk: Disk, data: DataDirectory
) -> None:
    host = Host(disk, data, Cluster(1).settings())
    replica = host.open().replica
    host.until(lambda: replica.leads)
    access = replica.group.access
    assert access.cache is CacheState.EXPIRED
    service, line = KvService(cast("Any", Place())), Line()
    service.serve(host.group)
    for name in ("first", "second"):
        replica.propose(RequestId(len(name)), put(name, "v"))
        host.until(lambda: not replica.backlog()[0])
    watch = msgspec.msgpack.encode(WatchRequest(0, []))
    service.on_requests(service.joined(line), [(1, GROUP, KvOperation.WATCH, watch)])
    service.on_tick()
    assert not line.staged, "with an expired copy nothing newer than it is shown"
    replica.control_plane(ControlPlaneUpdate(cache_age_ms=0))
    service.on_tick()
    assert b"first" in b"".join(line.staged)
    assert b"second" in b"".join(line.staged)
    host.group.close()
