"""What a directory lies on, as the kernel's tables say: its mount, and the devices below."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOUNTS_FILE: Final = Path("/proc/self/mountinfo")
BLOCK_DEVICES: Final = Path("/sys/dev/block")
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the kernel's table of mounts."""

    kind: str = UNKNOWN
    source: str = UNKNOWN
    options: frozenset[str] = frozenset()


def filesystem_kind(status: os.stat_result) -> str:
    """Look the device of a file or directory up; `unknown` where the table does not name it."""
    return find_mount(_device_of(status), _read(MOUNTS_FILE)).kind


def mount_of(status: os.stat_result) -> Mount:
    """Return the mount that a file or directory lies on."""
    return find_mount(_device_of(status), _read(MOUNTS_FILE))


def find_mount(device: str, table: str) -> Mount:
    """Read the table of mounts; a device that it does not name gives an unknown mount."""
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) >= 6 and len(rest) >= 2 and fields[2] == device:
            above = rest[2].split(",") if len(rest) > 2 else []
            return Mount(rest[0], rest[1], frozenset((*fields[5].split(","), *above)))
    return Mount()


def write_cache_of(status: os.stat_result, devices: Path = BLOCK_DEVICES) -> str:
    """Return how the device's own cache works (`write back`, `write through`), or `unknown`."""
    directory = devices / _device_of(status)
    for queue in (directory / "queue", directory / ".." / "queue"):  # a partition has its disk's
        found = _read(queue / "write_cache").strip()
        if found:
            return found
    return UNKNOWN


def stacked_below(status: os.stat_result, devices: Path = BLOCK_DEVICES) -> tuple[str, ...]:
    """Name the devices that the device of a directory is made of; none: it is a real one."""
    directory = devices / _device_of(status)
    try:
        slaves = sorted(each.name for each in (directory / "slaves").iterdir())
    except OSError:
        slaves = []
    backing = _read(directory / "loop" / "backing_file").strip()
    return (*slaves, *([f"loop:{backing}"] if backing else []))


def _device_of(status: os.stat_result) -> str:
    return f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
