"""How busy the machine is with something else: what a bound in seconds is multiplied by."""

from __future__ import annotations

import subprocess
import sys

_SPIN = """
import time
began = time.monotonic()
while time.process_time() < 0.2:
    pass
print((time.monotonic() - began) / time.process_time())
"""
_NOISE = 1.5


def slowness() -> float:
    """Return how many times longer a process takes now than it works; 1 on a machine of our own.

    A promise in seconds is one of a machine that is free to keep it: the test that judges it asks
    for as many times more as a process of nobody's interest has to wait for its turn.
    """
    ran = subprocess.run(
        [sys.executable, "-S", "-c", _SPIN], capture_output=True, text=True, check=True
    )
    found = float(ran.stdout)
    return found if found > _NOISE else 1.0
