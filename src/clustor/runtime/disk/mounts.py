"""What kind of filesystem something lies on, as the kernel's table of mounts says."""

from __future__ import annotations

import os
from pathlib import Path


def filesystem_kind(status: os.stat_result) -> str:
    """Look the device of a file or directory up; `unknown` where the table does not name it."""
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == device:
            return after.split()[0]
    return "unknown"
