"""What the hot path of MQTT counts: ints in lists, read when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from clustor.telemetry.meters import Histogram

ACK_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class BrokerMeters:
    """Counts of one node, from its start on. `[qos]` where there is one for each QoS."""

    __slots__ = (
        "_clock_ms",
        "connects",
        "disconnects",
        "faults",
        "forwarded",
        "local",
        "publish_ack_seconds",
        "publishes_in",
        "publishes_out",
        "refused",
        "resumed",
    )

    def __init__(self, clock_ms: Callable[[], int] = lambda: 0) -> None:
        self._clock_ms = clock_ms
        self.publish_ack_seconds = Histogram(ACK_SECONDS)
        """From a publish's arrival to its PUBACK or PUBREC, QoS 1 and 2."""
        self.faults: Counter[int] = Counter()
        """What was wrong with packets, by the reason code."""
        self.publishes_in = [0, 0, 0]
        self.publishes_out = [0, 0, 0, 0, 0]
        """By the QoS bits of the first byte as they stand there: 0, 2 and 4."""
        self.forwarded = 0
        """Publishes whose topic another partition owns than their session's."""
        self.local = 0
        self.connects = 0
        self.disconnects: Counter[int] = Counter()
        self.refused: Counter[tuple[str, int]] = Counter()
        self.resumed = 0
        """Clients whose session went on under another leader while they were connected."""

    def note_answered(self, began_ms: int, count: int) -> None:
        """Note that publishes are answered which came together."""
        self.publish_ack_seconds.observe_many((self._clock_ms() - began_ms) / 1000, count)

    def refuse(self, packet: str, reason: int, count: int = 1) -> None:
        """Count what was answered with a failure."""
        self.refused[packet, int(reason)] += count
