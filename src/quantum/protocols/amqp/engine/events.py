"""What an engine tells its driver, in the order in which it came true. All in the past tense."""

from __future__ import annotations

from dataclasses import dataclass, field

from quantum.protocols.amqp.engine.composites import (
    AttachFrame,
    BeginFrame,
    DeliveryState,
    ErrorValue,
    OpenFrame,
)
from quantum.protocols.amqp.engine.ends import AmqpLink, AmqpSession, OutgoingDelivery
from quantum.protocols.amqp.engine.errors import AmqpPeerFault


@dataclass(slots=True)
class SaslInitReceived:
    """The peer chose a mechanism that was offered: answer with a challenge or an outcome."""

    mechanism: str
    initial_response: bytes | None = field(repr=False)
    hostname: str | None


@dataclass(slots=True)
class SaslResponseReceived:
    """The peer answered the challenge: answer with another or with an outcome."""

    response: bytes = field(repr=False)


@dataclass(slots=True)
class OpenReceived:
    """The peer opened the connection: answer with `open()`, and with `close()` to refuse it."""

    open: OpenFrame


@dataclass(slots=True)
class CloseReceived:
    """The peer closed the connection: answer with `close()` unless that was said before."""

    error: ErrorValue | None


@dataclass(slots=True)
class AmqpConnectionFailed:
    """The peer broke the protocol, or fell silent; what must be said to it is queued already."""

    fault: AmqpPeerFault


@dataclass(slots=True)
class BeginReceived:
    """The peer began a session: answer with `session.begin()`, then maybe `session.end()`."""

    session: AmqpSession
    begin: BeginFrame


@dataclass(slots=True)
class EndReceived:
    """The peer ended a session, and its links with it: answer with `session.end()`."""

    session: AmqpSession
    error: ErrorValue | None


@dataclass(slots=True)
class SessionFailed:
    """The peer broke the protocol on a session; its end is queued, its links are gone."""

    session: AmqpSession
    fault: AmqpPeerFault


@dataclass(slots=True)
class AttachReceived:
    """The peer attached a link: answer with `link.attach()` or `link.refuse()`."""

    link: AmqpLink
    attach: AttachFrame


@dataclass(slots=True)
class DetachReceived:
    """The peer detached a link: answer with `link.detach()` unless that was said before."""

    link: AmqpLink
    closed: bool
    error: ErrorValue | None


@dataclass(slots=True)
class LinkFailed:
    """The peer broke the protocol on a link, or attached it anew; its detach is queued."""

    link: AmqpLink
    fault: AmqpPeerFault


@dataclass(slots=True)
class FlowReceived:
    """The peer told its state of a link: credit and drain, or what is available at its end."""

    link: AmqpLink


@dataclass(slots=True)
class WindowOpened:
    """A session that had no room for transfers has room again."""

    session: AmqpSession


@dataclass(slots=True)
class DeliveryReceived:
    """A whole delivery; where it is not settled it waits for `session.settle()`."""

    link: AmqpLink
    delivery_id: int
    tag: bytes
    message_format: int
    settled: bool
    payload: bytes = field(repr=False)
    state: DeliveryState | None
    resume: bool


@dataclass(slots=True)
class DeliveryAborted:
    """The peer gave up a delivery half-way: it is settled, and what came of it is gone."""

    link: AmqpLink
    delivery_id: int
    tag: bytes


@dataclass(slots=True)
class DeclareReceived:
    """A transaction is asked for: settle with Declared, or Rejected with a transaction error."""

    link: AmqpLink
    delivery_id: int
    global_id: object


@dataclass(slots=True)
class DischargeReceived:
    """A transaction is to end: settle with Accepted, or Rejected with a transaction error."""

    link: AmqpLink
    delivery_id: int
    txn_id: bytes
    fail: bool


@dataclass(slots=True)
class DispositionReceived:
    """What the receiver says of deliveries that we sent; settled ones are forgotten here."""

    session: AmqpSession
    deliveries: list[OutgoingDelivery]
    state: DeliveryState | None
    settled: bool


@dataclass(slots=True)
class SenderDispositionReceived:
    """What the sender says of deliveries that we received; settled ones are forgotten here."""

    session: AmqpSession
    delivery_ids: list[int]
    state: DeliveryState | None
    settled: bool


Event = (
    SaslInitReceived
    | SaslResponseReceived
    | OpenReceived
    | CloseReceived
    | AmqpConnectionFailed
    | BeginReceived
    | EndReceived
    | SessionFailed
    | AttachReceived
    | DetachReceived
    | LinkFailed
    | FlowReceived
    | WindowOpened
    | DeliveryReceived
    | DeliveryAborted
    | DeclareReceived
    | DischargeReceived
    | DispositionReceived
    | SenderDispositionReceived
)
