"""What is said of a disk before a node is made on it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from clustor.runtime.disk.checks import DiskFindingKind, DiskPicture, judge, look
from clustor.runtime.disk.mounts import find_mount, stacked_below, write_cache_of

GOOD = DiskPicture("ext4", "/dev/sda1", frozenset({"rw"}), "write back", (), 4096, 1 << 30)
K = DiskFindingKind
CASES = {
    "a real disk": (GOOD, []),
    "write through": (replace(GOOD, write_cache="write through"), []),
    "in memory": (replace(GOOD, kind="tmpfs", source="tmpfs"), [K.UNSUPPORTED_MOUNT]),
    "on another machine": (replace(GOOD, kind="nfs4"), [K.UNSUPPORTED_MOUNT]),
    "without barriers": (replace(GOOD, options=frozenset({"nobarrier"})), [K.NO_BARRIERS]),
    "ext4's way to say so": (replace(GOOD, options=frozenset({"barrier=0"})), [K.NO_BARRIERS]),
    "made of others": (replace(GOOD, stacked=("sda", "sdb")), [K.STACKED_DEVICE]),
    "nobody knows its cache": (replace(GOOD, write_cache="unknown"), [K.WRITE_CACHE_UNKNOWN]),
    "zfs": (replace(GOOD, kind="zfs"), [K.SYNC_UNKNOWN]),
}


@pytest.mark.parametrize(("disk", "kinds"), CASES.values(), ids=CASES.keys())
def test_a_disk_is_judged(disk: DiskPicture, kinds: list[DiskFindingKind]) -> None:
    assert [each.kind for each in judge(disk)] == kinds


def test_only_what_the_specification_refuses_refuses() -> None:
    refusing = {each.kind for disk, _ in CASES.values() for each in judge(disk) if each.refuses}
    assert refusing == {K.UNSUPPORTED_MOUNT, K.NO_BARRIERS, K.STACKED_DEVICE}


TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,barrier=0
23 22 0:21 / /tmp rw,nosuid - tmpfs tmpfs rw,size=10k
broken
"""


def test_the_table_of_mounts_is_read() -> None:
    found = find_mount("8:1", TABLE)
    assert (found.kind, found.source) == ("ext4", "/dev/sda1")
    assert {"relatime", "barrier=0"} <= found.options
    assert find_mount("0:21", TABLE).kind == "tmpfs"
    assert find_mount("9:9", TABLE).kind == "unknown"


def test_devices_are_read_as_the_kernel_shows_them(tmp_path: Path) -> None:
    status = tmp_path.stat()
    device = tmp_path / "block" / f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    (device / "slaves" / "sdb").mkdir(parents=True)
    (device / "slaves" / "sda").mkdir()
    (device / "queue").mkdir()
    (device / "queue" / "write_cache").write_text("write through\n")
    assert stacked_below(status, tmp_path / "block") == ("sda", "sdb")
    assert write_cache_of(status, tmp_path / "block") == "write through"
    assert write_cache_of(status, tmp_path / "nothing") == "unknown"
    assert stacked_below(status, tmp_path / "nothing") == ()


def test_the_disk_of_this_directory_can_be_looked_at(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert found.fs_block_bytes > 0 and found.free_bytes > 0
    judge(found)
