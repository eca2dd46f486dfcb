"""Whether a node finds room on its disk, asked before anything is made: a log that finds none later
stops for good.
"""

from __future__ import annotations

from pathlib import Path

from clustor.runtime.data_directory import STATE_DIRECTORY, read_room
from clustor.runtime.disk.policy import DiskNumbers, bytes_to_start
from clustor.runtime.disk.reserve import RESERVE_STEP_BYTES
from clustor.runtime.errors import NoRoom


def require_room(node: Path, *, groups: int, numbers: DiskNumbers, segment_bytes: int) -> None:
    """Raise NoRoom where a node with so many groups could not begin in its directory."""
    fresh = not (node / STATE_DIRECTORY).exists()
    needed = bytes_to_start(
        numbers, segment_bytes, new_groups=groups if fresh else 0, step_bytes=RESERVE_STEP_BYTES
    )
    there = next(each for each in (node, *node.absolute().parents) if each.exists())
    found = read_room(there)
    if found is not None and found[0] > 0 and found[1] < needed:  # a size of 0 says nothing
        raise NoRoom(
            "the disk is too full to start: make room, or choose another directory with --data",
            directory=str(node),
            free=f"{found[1] / 1e6:.0f} MB",
            needed=f"{needed / 1e6:.0f} MB",
        )
