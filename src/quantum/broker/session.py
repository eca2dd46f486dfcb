"""What a partition remembers of one client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from quantum.broker.commands import SubscriptionSpec, WillSpec
from quantum.broker.outbound import Outbound, Total
from quantum.broker.types import (
    MACHINE_PACKET_ID_MAX,
    NEVER_EXPIRES,
    ClientId,
    SessionEpoch,
)

ACCEPTED: Final = 0  # its topic's partition has it, nobody knows since when
"""The state of a QoS 2 publish that its topic's partition has; above 0 is the place in the
channel to that partition, which has not answered yet."""


@dataclass(slots=True)
class Replay:
    """What is retained for a subscription, from a topic on, has not been sent yet."""

    prg: int
    filter: bytes
    qos: int
    identifier: int
    after: bytes


@dataclass(slots=True, eq=False)
class Session:
    """A session that is in the log: it outlives connections, or has subscriptions or a will."""

    client_id: ClientId
    epoch: SessionEpoch
    expiry_seconds: int  # 0: it ends with its connection
    outbound: Outbound
    attachment: int = 0
    """Names the connection that the session belongs to. One entry may hold several Attaches, so
    it is a number of its own."""
    connected: bool = True
    disconnected_at_ms: int = 0
    subscriptions: dict[bytes, SubscriptionSpec] = field(default_factory=dict)
    """By the filter as the client wrote it, `$share/…` included."""
    received: dict[int, tuple[int, int]] = field(default_factory=dict)
    """QoS 2 publishes that are not released: packet id → (partition, place).

    The place is the one in the channel to the topic's partition; once that has the message it is
    ACCEPTED, or the time of that, negative (`accepted_at`)."""
    will: WillSpec | None = None
    will_due_ms: int = 0  # 0: not waiting
    shares: int = 0  # how many of the subscriptions are shared
    keeps_queue: bool = False
    """Whether the machine keeps what is on its way to the client. Once it does, it always will:
    what is queued must not be overtaken. (What comes through shared subscriptions is kept in
    any case, because it is another member's if this one does not acknowledge it.)"""
    look_at_ms: int = 0
    """When `Elapse` has to look at it next; 0: not at all."""
    replays: list[Replay] = field(default_factory=list)
    identity: bytes = b""
    """A digest of who made it: nobody else may attach to it. Empty: it is bound to nobody."""

    @property
    def is_durable(self) -> bool:
        """Whether the session outlives its connection."""
        return self.expiry_seconds > 0

    def ends_at_ms(self) -> int | None:
        """When a disconnected session ends; None for never, or while it is connected."""
        if self.connected or self.expiry_seconds == NEVER_EXPIRES:
            return None
        return self.disconnected_at_ms + 1000 * self.expiry_seconds


def new_outbound(window: int, total: Total) -> Outbound:
    """Make the queue of a session that the machine keeps, one of those that weigh `total`."""
    return Outbound(window, 1, MACHINE_PACKET_ID_MAX, total)


def accepted_at(now_ms: int) -> int:
    """Return the place of a QoS 2 publish that its topic's partition has from now on."""
    return -now_ms


def is_accepted(place: int) -> bool:
    return place <= ACCEPTED


def is_past(place: int, now_ms: int, horizon_ms: int) -> bool:
    """Say whether a publish was accepted so long ago that its packet id is free again (§4.2)."""
    return place < ACCEPTED and now_ms + place >= horizon_ms
