"""How many bytes crossed the connections of some ports, by what the kernel says of each socket.

Counted is what TCP carried (payload of segments, no headers). Sockets that end between two looks
are counted as they were last seen; the looks are frequent, and a look at the end is taken before
the load's connections close where the caller arranges that.
"""

from __future__ import annotations

import re
import subprocess
import threading
from typing import Self

_LOOK_SECONDS = 0.05
_SENT = re.compile(r"bytes_sent:(\d+)")
_RECEIVED = re.compile(r"bytes_received:(\d+)")


class WireBytes:
    """Looks at the sockets that were accepted on `ports` while its context lasts."""

    def __init__(self, ports: list[int]) -> None:
        self._filter = " or ".join(f"sport = :{port}" for port in ports)
        self._before = self._look()
        self._last: dict[str, tuple[int, int]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._last |= self._look()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._last |= self._look()

    def _look(self) -> dict[str, tuple[int, int]]:
        asked = subprocess.run(
            ["ss", "-tinHO", f"( {self._filter} )"], capture_output=True, text=True, check=False
        )
        found: dict[str, tuple[int, int]] = {}
        for line in asked.stdout.splitlines():
            words = line.split()
            sent, received = _SENT.search(line), _RECEIVED.search(line)
            amounts = (int(sent[1]) if sent else 0, int(received[1]) if received else 0)
            found[f"{words[3]} {words[4]}"] = amounts
        return found

    @property
    def total(self) -> int:
        """What crossed in both directions."""
        grown = 0
        for name, (sent, received) in self._last.items():
            before = self._before.get(name, (0, 0))
            grown += sent - before[0] + received - before[1]
        return grown
