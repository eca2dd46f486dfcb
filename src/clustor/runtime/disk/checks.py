"""What a node's disk promises, before anything is entrusted to it (clustor §9.6, §14.3).

A sync is only worth what the layers below make of it: a filesystem without barriers, a mount that
lives in memory or on another machine, a device made of others whose flushes nobody vouches for.
`judge` is pure. What it refuses stops the first start of a node that is not for development,
unless `disk_override` in `cluster.json` says why not; a later start only tells of it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from clustor.runtime.cluster_file import ClusterFile
from clustor.runtime.data_directory import DataDirectory
from clustor.runtime.disk import probe
from clustor.runtime.disk.mounts import UNKNOWN, mount_of, stacked_below, write_cache_of
from clustor.runtime.errors import DataDirectoryRefused

SUPPORTED: Final = frozenset({"ext4", "ext3", "xfs", "btrfs", "zfs", "f2fs"})
_WITHOUT_BARRIERS: Final = frozenset({"nobarrier", "barrier=0", "barrier=none"})


journal = logging.getLogger("clustor.node")


class DiskFindingKind(StrEnum):
    UNSUPPORTED_MOUNT = "UnsupportedMount"
    NO_BARRIERS = "NoBarriers"
    STACKED_DEVICE = "StackedDevice"
    WRITE_CACHE_UNKNOWN = "WriteCacheUnknown"
    SYNC_UNKNOWN = "SyncUnknown"


REFUSED: Final = frozenset(
    {
        DiskFindingKind.UNSUPPORTED_MOUNT,
        DiskFindingKind.NO_BARRIERS,
        DiskFindingKind.STACKED_DEVICE,
    }
)


@dataclass(frozen=True, slots=True)
class DiskFinding:
    """One thing about the disk that people must know, in a sentence."""

    kind: DiskFindingKind
    detail: str

    @property
    def refuses(self) -> bool:
        """Whether a node must not be made here without an operator's word."""
        return self.kind in REFUSED


@dataclass(frozen=True, slots=True)
class DiskPicture:
    """What the kernel says of the disk below a directory."""

    kind: str
    source: str
    options: frozenset[str]
    write_cache: str
    stacked: tuple[str, ...]
    fs_block_bytes: int
    free_bytes: int


def look(root: Path) -> DiskPicture:
    """Ask the kernel; what it does not say is `unknown`."""
    found, status = probe(root), root.stat()
    mount = mount_of(status)
    return DiskPicture(
        found.kind,
        mount.source,
        mount.options,
        write_cache_of(status),
        stacked_below(status),
        found.fs_block_bytes,
        found.free_bytes,
    )


def judge(disk: DiskPicture) -> tuple[DiskFinding, ...]:
    """Say what is wrong with a disk, or not known; nothing: its syncs are syncs."""
    findings: list[DiskFinding] = []
    if disk.kind not in SUPPORTED:
        words = f"{disk.kind} on {disk.source} is no filesystem whose syncs are known to hold"
        findings.append(DiskFinding(DiskFindingKind.UNSUPPORTED_MOUNT, words))
    if bare := sorted(disk.options & _WITHOUT_BARRIERS):
        words = f"{disk.source} is mounted with {bare[0]}: a power cut loses what was synced"
        findings.append(DiskFinding(DiskFindingKind.NO_BARRIERS, words))
    if disk.stacked:
        below = ", ".join(disk.stacked)
        words = f"{disk.source} is made of {below}: each layer must pass flushes on"
        findings.append(DiskFinding(DiskFindingKind.STACKED_DEVICE, words))
    if disk.write_cache == UNKNOWN and disk.kind in SUPPORTED:
        words = f"the kernel does not say how {disk.source} caches writes"
        findings.append(DiskFinding(DiskFindingKind.WRITE_CACHE_UNKNOWN, words))
    if disk.kind == "zfs":
        words = "whether sync=always is set on this ZFS dataset cannot be read from here"
        findings.append(DiskFinding(DiskFindingKind.SYNC_UNKNOWN, words))
    return tuple(findings)


@dataclass(frozen=True, slots=True)
class DiskChecked:
    """What a start found of its disk."""

    picture: DiskPicture
    findings: tuple[DiskFinding, ...]


def check_disk(data: DataDirectory, cluster: ClusterFile) -> DiskChecked:
    """Look at the disk of a data directory; raises DataDirectoryRefused where it must not be used.

    Only for a node that is made now: one that has data is not kept from it by a mount option. A
    development cluster, whose doors are plaintext on loopback, is only told.
    """
    picture = look(data.root)
    findings = judge(picture)
    for each in findings:
        journal.warning("the disk: %s: %s", each.kind, each.detail)
    bad = [each for each in findings if each.refuses]
    if bad and data.is_unused and cluster.admin_tls and not cluster.disk_override:
        raise DataDirectoryRefused(
            "the disk is not safe for a log; move the data directory, or say in cluster.json "
            "(disk_override) why it is",
            kind=str(bad[0].kind),
            found=bad[0].detail,
        )
    return DiskChecked(picture, findings)
