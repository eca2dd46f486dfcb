"""What a client may ask of this broker; the same numbers are announced to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MqttLimits:
    """A payload of 16 MiB is the largest (quantumqtt, summary), 64 KiB may be around it."""

    packet_bytes_max: int = (16 << 20) + (64 << 10)
    connect_bytes_max: int = 128 << 10
    receive_maximum: int = 1_024  # publishes above QoS 0 that a client may have open
    topic_alias_maximum: int = 10
    keep_alive_seconds_max: int = 65_535
    session_expiry_seconds_default: int = 604_800  # of a persistent session before MQTT 5
    session_expiry_seconds_max: int = 4_294_967_295  # of MQTT 5, where that means for ever
    in_flight_max: int = 1_024  # the tenant's policy, towards a client, whatever it allows (C13)
    queue_bytes_max: int = 64 << 20  # of a connection that keeps its own queue
    block_ms_max: int = 10_000  # how long a publish waits for a full queue before it is refused
    topic_levels_max: int = 128  # of a topic or filter
    connect_wait_ms: int = 5_000  # how long a CONNECT waits for a leader
