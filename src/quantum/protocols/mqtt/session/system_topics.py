"""`$SYS`: what a node says about itself to whoever subscribes, as if it were retained.

The values are this node's, made when a subscription asks for them. Nothing is logged, and a
change is not published: subscribing again asks again.
"""

from __future__ import annotations

from typing import Final, Protocol

from clustor.runtime.build import build
from quantum.routing.retained import RetainedIndex

PREFIX: Final = b"$SYS/"


def _version() -> bytes:
    return b"quantum " + build().version.encode()


class Numbers(Protocol):
    """What is counted on a node."""

    @property
    def uptime_seconds(self) -> int: ...
    @property
    def connections(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def faults(self) -> dict[str, int]: ...


def answers(topic_filter: bytes, numbers: Numbers) -> list[tuple[bytes, bytes]]:
    """Return the topics under `$SYS` that a filter matches, and their payloads now."""
    if not topic_filter.startswith(PREFIX):
        return []
    index: RetainedIndex[bytes] = RetainedIndex()
    for topic, value in _values(numbers).items():
        index.put(topic, value)
    return sorted(index.match(topic_filter))


def _values(numbers: Numbers) -> dict[bytes, bytes]:
    return {
        b"$SYS/broker/version": _version(),
        b"$SYS/broker/uptime": b"%d seconds" % numbers.uptime_seconds,
        b"$SYS/broker/clients/connected": b"%d" % numbers.connections,
        b"$SYS/broker/messages/dropped": b"%d" % numbers.dropped,
        b"$SYS/broker/faults": b"%d" % sum(numbers.faults.values()),
    }
