"""What a node loses on a machine that does not give it the best way to write: one sentence."""

from __future__ import annotations

from typing import Final

from clustor.log.types import IoWriterMode
from clustor.runtime.disk.types import Disk

_LOST: Final = {
    IoWriterMode.FIXED_URING: "io_uring with fewer locked buffers: many writes at once cost more",
    IoWriterMode.REGISTERED_URING: "io_uring without locked buffers: each write costs a little"
    " more",
    IoWriterMode.BLOCKING: "one writer thread instead of io_uring: partitions wait for each"
    " other's syncs, and none may run in Group-Fsync mode",
}
_NEXT: Final = {
    IoWriterMode.FIXED_URING: "raise the limit of locked memory (`ulimit -l`)",
    IoWriterMode.REGISTERED_URING: "raise the limit of locked memory (`ulimit -l`)",
    IoWriterMode.BLOCKING: "allow io_uring and locked memory (`ulimit -l`) to this process",
}


def describe_loss(disk: Disk) -> str | None:
    """Say what is lost, why, and how to have it; None where the disk is written the best way.

    The promise of an acknowledgement is the same in every mode.
    """
    if not disk.downgrades:
        return None
    cause = disk.downgrades[-1].reason
    return (
        f"the disk is written by {_LOST[disk.mode]}; acknowledgements promise the same. "
        f"Cause: {cause}; to mend it, {_NEXT[disk.mode]}"
    )
