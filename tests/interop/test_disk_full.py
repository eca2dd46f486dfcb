"""A real file system that is nearly full: writes are refused by name, and come back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clustor.runtime.kv.client import KvClient, KvUnavailable
from quantum.cli.admin_client import fetch
from tests.interop.cluster_process import ClusterProcess
from tests.interop.control_process import all_healthy, prepared

SEGMENT = 1 << 20
DISK = 24 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK}"]
    if subprocess.run(["mount", *options, "tmpfs", str(place)], check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, leave: int) -> Path:
    """Leave so many bytes free."""
    found = os.statvfs(place)
    ballast = place / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - leave)
    return ballast


def flow(cluster: ClusterProcess) -> dict[str, Any]:
    group = cluster.group(1) or {}
    return group.get("flow") or {}


async def test_a_full_disk_refuses_writes_by_name_and_recovers(small_disk: Path) -> None:
    data = small_disk / "cluster"
    prepared(data, nodes=1, segment_bytes=SEGMENT)
    with ClusterProcess(data, nodes=1) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            await client.put(b"before", b"it is full")
        ballast = fill(small_disk, leave=SEGMENT)
        cluster.until(lambda: flow(cluster).get("reason") == "DiskHard", "it is refused by name")

        def said() -> bool:
            _, why = fetch(cluster.admin(1), "/groups/1/why/WhyDiskBlocked")
            return (why.get("clause"), why.get("holds")) == ("DiskHard", True)

        cluster.until(said, "it says why")
        async with KvClient(cluster.admins(), timeout_seconds=1) as client:
            with pytest.raises(KvUnavailable):
                await client.put(b"while", b"it is full")
        ballast.unlink()
        cluster.until(lambda: flow(cluster).get("reason") is None, "it recovers")
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            await client.put(b"after", b"there is room")
            record = await client.get(b"before")
        assert record is not None and record.value == b"it is full"
        assert cluster.wait_for_group(1)["state"] == "Running"
