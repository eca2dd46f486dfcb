"""Telling a service manager how this node is: ready, alive, stopping (`sd_notify`).

The watchdog's word comes from the node's own loop: a loop that hangs sends none, and is started
again.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from clustor.runtime.pki.certificate_watch import RepeatedCall

_MICROSECONDS: Final = 1_000_000
_WATCHDOG_SHARE: Final = 3  # words within the time after which silence counts


class ServiceNotify:
    """The socket of `NOTIFY_SOCKET`; without one nothing is said."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        place = environment.get("NOTIFY_SOCKET", "")
        self._place = "\0" + place[1:] if place.startswith("@") else place
        said = environment.get("WATCHDOG_USEC", "")
        self._seconds = int(said) / _MICROSECONDS if said.isdecimal() else 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if place else None
        if self._socket is not None:
            self._socket.settimeout(0)
        self._alive: RepeatedCall | None = None

    def start(self) -> None:
        """Say that the node serves, and go on saying that it lives."""
        self._say("READY=1\nSTATUS=serving")
        if self._socket is not None and self._seconds:
            self._alive = RepeatedCall(
                lambda: self._say("WATCHDOG=1"), self._seconds / _WATCHDOG_SHARE
            )

    def stopping(self) -> None:
        """Say that it ends in order."""
        self._say("STOPPING=1")
        if self._alive is not None:
            self._alive.stop()

    def _say(self, words: str) -> None:
        if self._socket is not None:
            with suppress(OSError):  # a manager that is gone, or behind, takes nothing from clients
                self._socket.sendto(words.encode(), self._place)
