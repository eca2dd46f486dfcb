"""Where one client's connection is."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """The way of a connection; all but the last two are the `Entrance`'s."""

    NEW = 0  # no CONNECT yet
    ROUTING = 1  # CONNECT is here; who serves it is not known yet
    RELAYED = 2  # another node serves it
    AUTHENTICATING = 3  # it proves over AUTH packets who it is
    ATTACHING = 4  # its session is being looked up
    LIVE = 5
    CLOSED = 6
