"""What a leader does after a command is committed and durable: nothing of it changes state.

Only the leader's machine is asked to collect effects; replicas that follow skip the work. They
are made by the thousand and never refer to each other: the garbage collector need not know them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from quantum.broker.message import Message
from quantum.broker.outbound import Delivery
from quantum.broker.routes import TopicRoute
from quantum.broker.sections import SectionEffect


class FanOut(msgspec.Struct, gc=False):
    """A message for the connections of sessions that the machine does not keep queues for."""

    route: TopicRoute
    message: Message


class Send(msgspec.Struct, gc=False):
    """A message of a kept queue whose turn it is. `again`: it may have been sent before."""

    client_id: bytes
    delivery: Delivery
    again: bool = False


class SendVolatile(msgspec.Struct, gc=False):
    """A message for one connection that keeps its own queue: retained, or a will's."""

    client_id: bytes
    message: Message
    qos: int
    retain: bool
    identifiers: tuple[int, ...]


class SendPubrel(msgspec.Struct, gc=False):
    client_id: bytes
    packet_id: int


class SendPubrec(msgspec.Struct, gc=False):
    """A QoS 2 publish is where it belongs, durably."""

    client_id: bytes
    packet_id: int


class SessionEnd(msgspec.Struct, gc=False):
    """A session is no more; a connection that has it must end."""

    client_id: bytes
    epoch: int
    reason: str


class RingChanged(msgspec.Struct, gc=False):
    """The ring has so many partitions now, or this one opened: connections may belong elsewhere."""

    routing_epoch: int
    prg_count: int


Effect: TypeAlias = (
    FanOut
    | Send
    | SendVolatile
    | SendPubrel
    | SendPubrec
    | SessionEnd
    | RingChanged
    | SectionEffect
)
