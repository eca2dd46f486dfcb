"""Two ills planted in a real cluster, and what its commands say: the cause, and the next step."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from quantum.cli.app import build
from quantum.cli.exits import Exit
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.control_process import all_healthy, prepared

NODES = 3
SEGMENT = 1 << 20
DISK = 160 << 20
MQTT_ROLE = 2


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
    """Leave so many bytes free; nodes write meanwhile, so what fitted may fit no more."""
    ballast = place / "ballast"
    while True:
        found = os.statvfs(place)
        with ballast.open("wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - leave)
            return ballast


def quantum(cluster: ClusterProcess, *arguments: str) -> Result:
    admin = ["--admin", str(cluster.admin(1))]
    return CliRunner().invoke(build([arguments[0]]), [*arguments, *admin])


def test_a_full_disk_and_a_lost_quorum_are_named_to_who_asks_about_a_client(
    small_disk: Path,
) -> None:
    """Issue 20, 6: `why CLIENT` says what stands in its way; who is healthy looks healthy."""
    data = small_disk / "cluster"
    prepared(data, nodes=NODES, segment_bytes=SEGMENT, patience=PATIENT)
    with ClusterProcess(data, nodes=NODES, tenant_prgs=1) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=3), "everything is there")

        def said(*words: str) -> bool:
            found = quantum(cluster, "why", "nobody")
            is_told = all(each in found.output for each in words)
            return is_told and found.exit_code == Exit.FAILED

        last: list[Result] = []

        def is_well() -> bool:
            last.append(quantum(cluster, "why", "1"))
            return last[-1].exit_code == 0 and "and nothing is wrong" in last[-1].output

        def is_open() -> bool:
            words = ["cluster", "status", "--data", str(data)]
            last.append(CliRunner().invoke(build(["cluster"]), words))
            return last[-1].exit_code == 0 and "gate shut" not in last[-1].output

        try:
            cluster.until(is_open, "the cluster is well")
            cluster.until(is_well, "its group is well")
        finally:
            print(last[-1].output)

        ballast = fill(small_disk, leave=SEGMENT)
        cluster.until(lambda: said("does not work: only", "→ free some room"), "the disk is named")
        ballast.unlink()

        stopped = [cluster.pid(node) for node in (2, 3)]
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            cluster.until(lambda: said("→ bring back a quorum of the nodes"), "the quorum is named")
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
