"""Where one client's connection is, and the name of the place for what goes wrong there."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

PLACE: Final = "mqtt"
"""Where an error while one client is served is counted."""


class ConnectionPhase(IntEnum):
    """The way of a connection; all but the last two are the handshake's."""

    NEW = 0  # no CONNECT yet
    ROUTING = 1  # CONNECT is here; who serves it is not known yet
    RELAYED = 2  # another node serves it
    AUTHENTICATING = 3  # it proves over AUTH packets who it is
    ATTACHING = 4  # its session is being looked up
    LIVE = 5
    CLOSED = 6
