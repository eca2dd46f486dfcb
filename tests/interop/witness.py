"""A client that waits for every answer while others are busy, and a process that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.quantum.serving.client import Client

WAIT_SECONDS_MAX = 0.25
"""What a publish may wait for its PUBACK on a machine that is free to answer it."""
_IDLE_SECONDS = 0.05
"""What an idle process waits at the most on such a machine, for its turn and for the disk."""
_IDLE = """
import os, sys, tempfile, time
worst = 0.0
with tempfile.TemporaryFile(buffering=0, dir=sys.argv[1]) as file:
    while not os.path.exists(sys.argv[2]):
        began = time.monotonic()
        time.sleep(0.005)
        file.write(bytes(4096))
        os.fsync(file.fileno())
        worst = max(worst, time.monotonic() - began - 0.005)
print(worst)
"""


_STALLED = """
import os, select, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
worst = 0.0
while True:
    began = time.monotonic()
    if select.select([sys.stdin], [], [], 0.005)[0]:
        break
    worst = max(worst, time.monotonic() - began - 0.005)
print(worst)
"""


class Idle:
    """A process of nobody's interest on the same disk: how long it has to wait, others do too."""

    def __init__(self, directory: Path) -> None:
        self._stop = directory / "stop"
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _IDLE, str(directory), str(self._stop)],
            stdout=subprocess.PIPE,
        )

    def worst_seconds(self) -> float:
        """End it, and return how long it had to wait."""
        self._stop.touch()
        said, _ = self._process.communicate(timeout=180)
        return float(said)


class Stalls:
    """A process on each processor that only wants its turn: when the machine stands, it notices.

    What shares a machine with others may have no processor at all for as long as an election
    takes: then leaders change, and no load is to blame.
    """

    def __init__(self) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-S", "-c", _STALLED, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for number in sorted(os.sched_getaffinity(0))
        ]

    def worst_seconds(self) -> float:
        """End them, and return how long one of them had to wait."""
        return max(float(each.communicate(timeout=180)[0]) for each in self._processes)


class Witness(threading.Thread):
    """A client that publishes with QoS 1 all the while, and remembers its longest wait."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self.stopping = threading.Event()
        self.worst_seconds = 0.0
        self.published = 0

    def run(self) -> None:
        while not self.stopping.wait(0.005):
            self.worst_seconds = max(self.worst_seconds, publish(self._client))
            self.published += 1


def publish(client: Client) -> float:
    """Publish once; return how long the acknowledgement took."""
    begin = time.monotonic()
    assert not client.publish(b"good", b"still here", 1).is_failure
    return time.monotonic() - begin


def bound_seconds(idle_seconds: float, slowness: float = 1.0) -> float:
    """Return what a witness may wait where an idle process waited so long, and worked so slowly."""
    return WAIT_SECONDS_MAX * max(1.0, slowness, idle_seconds / _IDLE_SECONDS)
