"""What a driver decides about an engine before the first byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quantum.protocols.amqp.engine.errors import AmqpMisuse
from quantum.protocols.amqp.engine.types import DEFAULT_LIMITS, DecodeLimits

FRAME_BYTES_MIN: Final = 512
"""What every peer accepts, and the most that is sent before the peer said more (§2.4.1)."""
TAG_BYTES_MAX: Final = 32
WINDOW_MAX: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds and announcements of one connection; each bound holds memory or time."""

    container_id: str
    frame_bytes_max: int = 65_536
    """What is announced as max-frame-size; a larger frame ends the connection."""
    channel_max: int = 255
    handle_max: int = 1_023
    idle_time_out_ms: int | None = 30_000
    """What is announced; the peer is given twice this before it counts as gone (§2.4.5)."""
    incoming_window: int = 2_048
    """Transfers that a session takes before it says that it has room again."""
    message_bytes_max: int = 16 << 20
    """What a link announces as max-message-size where its driver says nothing else."""
    partial_bytes_max: int = 64 << 20
    """What deliveries that are not whole yet may hold on the whole connection."""
    mechanisms: tuple[str, ...] = ()
    """The SASL mechanisms that are offered; without any, a SASL header is refused."""
    sasl_required: bool = True
    """Whether a peer must authenticate; asked only where there are mechanisms."""
    sasl_frame_bytes_max: int = 8_192
    """Beyond the standard's 512 (§5.3.1), which a bearer token does not fit in."""
    sasl_steps_max: int = 8
    """Challenges in one exchange; the next one ends it."""
    limits: DecodeLimits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.frame_bytes_max < FRAME_BYTES_MIN:
            raise AmqpMisuse("a frame of 512 bytes must be accepted", given=self.frame_bytes_max)
        if not 0 <= self.channel_max <= 0xFFFF or not 0 <= self.handle_max <= 0xFFFFFFFF:
            raise AmqpMisuse("channel_max or handle_max is out of its range")
        if not 0 < self.incoming_window <= WINDOW_MAX:
            raise AmqpMisuse("incoming_window is out of its range", given=self.incoming_window)
