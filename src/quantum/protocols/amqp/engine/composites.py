"""The composite types of parts 2 to 5: performatives, SASL frames, termini, states and errors.

Each is a dataclass whose fields stand in the standard's order. How a field is read and written
is said once, by the name of its type beside it; `decode_composite` and `encode_composite` know
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from quantum.protocols.amqp.engine.types import (
    LinkRole,
    ReceiverSettleMode,
    SaslCode,
    SenderSettleMode,
    TerminusDurability,
)

MANDATORY: Final = "!"


def _typed(kind: str, default: Any = None) -> Any:
    """A field of AMQP's type `kind`; a `!` behind it says that it must not be null."""
    if default is None and kind.endswith(MANDATORY):
        return field(metadata={"kind": kind})
    return field(default=default, metadata={"kind": kind})


class Composite:
    """What all described lists share: the descriptor's number and its name."""

    CODE: ClassVar[int]
    NAME: ClassVar[str]
    __slots__ = ()


@dataclass(slots=True)
class ErrorValue(Composite):
    """Why something ended (§2.8.14); `description` never holds a payload or a secret."""

    CODE = 0x1D
    NAME = "amqp:error:list"
    condition: str = _typed("symbol!")
    description: str | None = _typed("string")
    info: dict[object, object] | None = _typed("fields")


@dataclass(slots=True)
class ReceivedState(Composite):
    CODE = 0x23
    NAME = "amqp:received:list"
    section_number: int = _typed("uint!")
    section_offset: int = _typed("ulong!")


@dataclass(slots=True)
class AcceptedOutcome(Composite):
    CODE = 0x24
    NAME = "amqp:accepted:list"


@dataclass(slots=True)
class RejectedOutcome(Composite):
    CODE = 0x25
    NAME = "amqp:rejected:list"
    error: ErrorValue | None = _typed("error")


@dataclass(slots=True)
class ReleasedOutcome(Composite):
    CODE = 0x26
    NAME = "amqp:released:list"


@dataclass(slots=True)
class ModifiedOutcome(Composite):
    CODE = 0x27
    NAME = "amqp:modified:list"
    delivery_failed: bool | None = _typed("boolean")
    undeliverable_here: bool | None = _typed("boolean")
    message_annotations: dict[object, object] | None = _typed("fields")


@dataclass(slots=True)
class Declared(Composite):
    CODE = 0x33
    NAME = "amqp:declared:list"
    txn_id: bytes = _typed("txn-id!")


@dataclass(slots=True)
class TransactionalState(Composite):
    CODE = 0x34
    NAME = "amqp:transactional-state:list"
    txn_id: bytes = _typed("txn-id!")
    outcome: Outcome | None = _typed("outcome")


Outcome = AcceptedOutcome | RejectedOutcome | ReleasedOutcome | ModifiedOutcome | Declared
DeliveryState = Outcome | ReceivedState | TransactionalState
OUTCOMES: Final = (AcceptedOutcome, RejectedOutcome, ReleasedOutcome, ModifiedOutcome, Declared)
STATES: Final = (*OUTCOMES, ReceivedState, TransactionalState)


@dataclass(slots=True)
class SourceTerminus(Composite):
    CODE = 0x28
    NAME = "amqp:source:list"
    address: str | None = _typed("address")
    durable: int = _typed("durability", TerminusDurability.NONE)
    expiry_policy: str = _typed("expiry-policy", "session-end")
    timeout: int = _typed("uint", 0)
    dynamic: bool = _typed("boolean", False)  # noqa: FBT003
    dynamic_node_properties: dict[object, object] | None = _typed("fields")
    distribution_mode: str | None = _typed("symbol")
    filter: dict[object, object] | None = _typed("fields")
    default_outcome: Outcome | None = _typed("outcome")
    outcomes: tuple[str, ...] = _typed("symbols", ())
    capabilities: tuple[str, ...] = _typed("symbols", ())


@dataclass(slots=True)
class TargetTerminus(Composite):
    CODE = 0x29
    NAME = "amqp:target:list"
    address: str | None = _typed("address")
    durable: int = _typed("durability", TerminusDurability.NONE)
    expiry_policy: str = _typed("expiry-policy", "session-end")
    timeout: int = _typed("uint", 0)
    dynamic: bool = _typed("boolean", False)  # noqa: FBT003
    dynamic_node_properties: dict[object, object] | None = _typed("fields")
    capabilities: tuple[str, ...] = _typed("symbols", ())


@dataclass(slots=True)
class Coordinator(Composite):
    """The target of a link that controls transactions (§4.5.1)."""

    CODE = 0x30
    NAME = "amqp:coordinator:list"
    capabilities: tuple[str, ...] = _typed("symbols", ())


@dataclass(slots=True)
class Declare(Composite):
    CODE = 0x31
    NAME = "amqp:declare:list"
    global_id: object = _typed("any")


@dataclass(slots=True)
class Discharge(Composite):
    CODE = 0x32
    NAME = "amqp:discharge:list"
    txn_id: bytes = _typed("txn-id!")
    fail: bool | None = _typed("boolean")


@dataclass(slots=True)
class OpenFrame(Composite):
    CODE = 0x10
    NAME = "amqp:open:list"
    container_id: str = _typed("string!")
    hostname: str | None = _typed("string")
    max_frame_size: int = _typed("uint", 0xFFFFFFFF)
    channel_max: int = _typed("ushort", 0xFFFF)
    idle_time_out: int | None = _typed("uint")
    outgoing_locales: tuple[str, ...] = _typed("symbols", ())
    incoming_locales: tuple[str, ...] = _typed("symbols", ())
    offered_capabilities: tuple[str, ...] = _typed("symbols", ())
    desired_capabilities: tuple[str, ...] = _typed("symbols", ())
    properties: dict[object, object] | None = _typed("fields")


@dataclass(slots=True)
class BeginFrame(Composite):
    CODE = 0x11
    NAME = "amqp:begin:list"
    remote_channel: int | None = _typed("ushort")
    next_outgoing_id: int = _typed("uint!", 0)
    incoming_window: int = _typed("uint!", 0)
    outgoing_window: int = _typed("uint!", 0)
    handle_max: int = _typed("uint", 0xFFFFFFFF)
    offered_capabilities: tuple[str, ...] = _typed("symbols", ())
    desired_capabilities: tuple[str, ...] = _typed("symbols", ())
    properties: dict[object, object] | None = _typed("fields")


@dataclass(slots=True)
class AttachFrame(Composite):
    CODE = 0x12
    NAME = "amqp:attach:list"
    name: str = _typed("string!")
    handle: int = _typed("uint!")
    role: LinkRole = _typed("role!")
    snd_settle_mode: SenderSettleMode = _typed("snd-settle-mode", SenderSettleMode.MIXED)
    rcv_settle_mode: ReceiverSettleMode = _typed("rcv-settle-mode", ReceiverSettleMode.FIRST)
    source: SourceTerminus | None = _typed("source")
    target: TargetTerminus | Coordinator | None = _typed("target")
    unsettled: dict[bytes, DeliveryState | None] | None = _typed("unsettled")
    incomplete_unsettled: bool = _typed("boolean", False)  # noqa: FBT003
    initial_delivery_count: int | None = _typed("uint")
    max_message_size: int | None = _typed("ulong")
    offered_capabilities: tuple[str, ...] = _typed("symbols", ())
    desired_capabilities: tuple[str, ...] = _typed("symbols", ())
    properties: dict[object, object] | None = _typed("fields")


@dataclass(slots=True)
class FlowFrame(Composite):
    CODE = 0x13
    NAME = "amqp:flow:list"
    next_incoming_id: int | None = _typed("uint")
    incoming_window: int = _typed("uint!", 0)
    next_outgoing_id: int = _typed("uint!", 0)
    outgoing_window: int = _typed("uint!", 0)
    handle: int | None = _typed("uint")
    delivery_count: int | None = _typed("uint")
    link_credit: int | None = _typed("uint")
    available: int | None = _typed("uint")
    drain: bool | None = _typed("boolean")
    echo: bool | None = _typed("boolean")
    properties: dict[object, object] | None = _typed("fields")


@dataclass(slots=True)
class TransferFrame(Composite):
    """As the decoders see one; the hot path has rows instead."""

    CODE = 0x14
    NAME = "amqp:transfer:list"
    handle: int = _typed("uint!")
    delivery_id: int | None = _typed("uint")
    delivery_tag: bytes | None = _typed("binary")
    message_format: int | None = _typed("uint")
    settled: bool | None = _typed("boolean")
    more: bool | None = _typed("boolean")
    rcv_settle_mode: ReceiverSettleMode | None = _typed("rcv-settle-mode")
    state: DeliveryState | None = _typed("state")
    resume: bool | None = _typed("boolean")
    aborted: bool | None = _typed("boolean")
    batchable: bool | None = _typed("boolean")


@dataclass(slots=True)
class DispositionFrame(Composite):
    CODE = 0x15
    NAME = "amqp:disposition:list"
    role: LinkRole = _typed("role!")
    first: int = _typed("uint!")
    last: int | None = _typed("uint")
    settled: bool | None = _typed("boolean")
    state: DeliveryState | None = _typed("state")
    batchable: bool | None = _typed("boolean")


@dataclass(slots=True)
class DetachFrame(Composite):
    CODE = 0x16
    NAME = "amqp:detach:list"
    handle: int = _typed("uint!")
    closed: bool | None = _typed("boolean")
    error: ErrorValue | None = _typed("error")


@dataclass(slots=True)
class EndFrame(Composite):
    CODE = 0x17
    NAME = "amqp:end:list"
    error: ErrorValue | None = _typed("error")


@dataclass(slots=True)
class CloseFrame(Composite):
    CODE = 0x18
    NAME = "amqp:close:list"
    error: ErrorValue | None = _typed("error")


@dataclass(slots=True)
class SaslMechanisms(Composite):
    CODE = 0x40
    NAME = "amqp:sasl-mechanisms:list"
    mechanisms: tuple[str, ...] = _typed("symbols!", ())


@dataclass(slots=True)
class SaslInit(Composite):
    CODE = 0x41
    NAME = "amqp:sasl-init:list"
    mechanism: str = _typed("symbol!")
    initial_response: bytes | None = field(default=None, repr=False, metadata={"kind": "binary"})
    hostname: str | None = _typed("string")


@dataclass(slots=True)
class SaslChallenge(Composite):
    CODE = 0x42
    NAME = "amqp:sasl-challenge:list"
    challenge: bytes = field(repr=False, metadata={"kind": "binary!"})


@dataclass(slots=True)
class SaslResponse(Composite):
    CODE = 0x43
    NAME = "amqp:sasl-response:list"
    response: bytes = field(repr=False, metadata={"kind": "binary!"})


@dataclass(slots=True)
class SaslOutcome(Composite):
    CODE = 0x44
    NAME = "amqp:sasl-outcome:list"
    code: SaslCode = _typed("sasl-code!")
    additional_data: bytes | None = field(default=None, repr=False, metadata={"kind": "binary"})


@dataclass(slots=True)
class MessageHeader(Composite):
    """A message's header (§3.2.1); absent fields have the standard's defaults."""

    CODE = 0x70
    NAME = "amqp:header:list"
    durable: bool = _typed("boolean", False)  # noqa: FBT003
    priority: int = _typed("ubyte", 4)
    ttl: int | None = _typed("uint")
    first_acquirer: bool = _typed("boolean", False)  # noqa: FBT003
    delivery_count: int = _typed("uint", 0)


@dataclass(slots=True)
class MessageProperties(Composite):
    """A message's immutable properties (§3.2.4)."""

    CODE = 0x73
    NAME = "amqp:properties:list"
    message_id: object = _typed("message-id")
    user_id: bytes | None = _typed("binary")
    to: str | None = _typed("address")
    subject: str | None = _typed("string")
    reply_to: str | None = _typed("address")
    correlation_id: object = _typed("message-id")
    content_type: str | None = _typed("symbol")
    content_encoding: str | None = _typed("symbol")
    absolute_expiry_time: int | None = _typed("timestamp")
    creation_time: int | None = _typed("timestamp")
    group_id: str | None = _typed("string")
    group_sequence: int | None = _typed("uint")
    reply_to_group_id: str | None = _typed("string")


PERFORMATIVES: Final = (
    OpenFrame,
    BeginFrame,
    AttachFrame,
    FlowFrame,
    TransferFrame,
    DispositionFrame,
    DetachFrame,
    EndFrame,
    CloseFrame,
)
SASL_FRAMES: Final = (SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome)
COMPOSITES: Final[tuple[type[Composite], ...]] = (
    *PERFORMATIVES,
    *SASL_FRAMES,
    *STATES,
    ErrorValue,
    SourceTerminus,
    TargetTerminus,
    Coordinator,
    Declare,
    Discharge,
    MessageHeader,
    MessageProperties,
)
