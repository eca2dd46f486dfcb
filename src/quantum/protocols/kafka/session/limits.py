"""What a Kafka client may ask of this broker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    """Bounds of one connection and of one request; what is beyond them is refused or waits."""

    produce_bytes_max: int = 32 << 20
    requests_open_max: int = 64  # of a connection: more are not read before some are answered
    open_bytes_max: int = 32 << 20  # what those may weigh together
    fetch_bytes_max: int = 16 << 20  # of one answer; a first batch that is larger still goes
    fetch_wait_ms_max: int = 60_000
    partitions_default: int = 1  # of a topic whose creator does not say
    partitions_max: int = 10_000  # of one topic
    whole_within_ms: int = 30_000  # a request whose bytes come slower than that is given up
    idle_ms_max: int = 600_000  # as Apache's connections.max.idle.ms
    sasl_ms_max: int = 10_000  # until a client that must show who it is has done so
    creates_topics: bool = True  # on first use: development, or a tenant that wants it
