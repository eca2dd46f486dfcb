"""What a leader does after a command is committed and durable: nothing of it changes state.

Only the leader's machine is asked to collect effects; replicas that follow skip the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from quantum.broker.message import Message
from quantum.broker.outbound import Delivery
from quantum.broker.routes import Route


@dataclass(slots=True)
class FanOut:
    """A message for the connections of sessions that the machine does not keep queues for."""

    route: Route
    message: Message


@dataclass(slots=True)
class Send:
    """A message of a kept queue whose turn it is. `again`: it may have been sent before."""

    client_id: bytes
    delivery: Delivery
    again: bool = False


@dataclass(slots=True)
class SendVolatile:
    """A message for one connection that keeps its own queue: retained, or a will's."""

    client_id: bytes
    message: Message
    qos: int
    retain: bool
    identifiers: tuple[int, ...]


@dataclass(slots=True)
class SendPubrel:
    client_id: bytes
    packet_id: int


@dataclass(slots=True)
class SendPubrec:
    """A QoS 2 publish is where it belongs, durably."""

    client_id: bytes
    packet_id: int


@dataclass(slots=True)
class Ended:
    """A session is no more; a connection that has it must end."""

    client_id: bytes
    epoch: int
    reason: str


Effect: TypeAlias = FanOut | Send | SendVolatile | SendPubrel | SendPubrec | Ended
