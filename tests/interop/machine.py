"""How busy the machine is with something else: what a bound in seconds is multiplied by."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

_SPIN = """
import time
began = time.monotonic()
while time.process_time() < 0.2:
    pass
print((time.monotonic() - began) / time.process_time())
"""
_NOISE = 1.5
_SYNCS = 20
_SYNC_SECONDS = 0.01
"""What a disk takes that bounds in seconds were meant for, and most take a tenth of."""


def slowness() -> float:
    """Return how many times longer a process takes now than it works; 1 on a machine of our own.

    A promise in seconds is one of a machine that is free to keep it: the test that judges it asks
    for as many times more as a process of nobody's interest has to wait for its turn, or for a
    disk on which every answer takes several syncs.
    """
    ran = subprocess.run(
        [sys.executable, "-S", "-c", _SPIN], capture_output=True, text=True, check=True
    )
    found = max(float(ran.stdout), _sync_seconds() / _SYNC_SECONDS)
    return found if found > _NOISE else 1.0


def _sync_seconds() -> float:
    """Return how long the disk takes on average to keep a page."""
    with tempfile.TemporaryFile(buffering=0) as file:
        began = time.monotonic()
        for _ in range(_SYNCS):
            file.write(bytes(4096))
            os.fsync(file.fileno())
    return (time.monotonic() - began) / _SYNCS
