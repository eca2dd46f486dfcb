"""A peer that says exactly what a test writes, and reads back what the engine answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from quantum.protocols.amqp.engine import (
    AmqpConnection,
    AmqpLink,
    AmqpSession,
    AttachFrame,
    AttachReceived,
    BeginFrame,
    BeginReceived,
    EngineSettings,
    Event,
    LinkRole,
    OpenFrame,
    OpenReceived,
    ReceiverSettleMode,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
    decode_composite,
)
from quantum.protocols.amqp.engine.composites import Composite
from quantum.protocols.amqp.engine.fields import encode_composite
from quantum.protocols.amqp.engine.framing import AMQP_HEADER, HEARTBEAT, encode_frame

E = TypeVar("E", bound=Event)
C = TypeVar("C", bound=Composite)


@dataclass
class Answer:
    """What the engine wrote since it was last asked: headers apart from frames."""

    headers: list[bytes] = field(default_factory=list)
    bodies: list[Composite] = field(default_factory=list)
    channels: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    heartbeats: int = 0

    def only(self, kind: type[C]) -> C:
        found = [each for each in self.bodies if isinstance(each, kind)]
        assert len(found) == 1, self.bodies
        return found[0]

    def all(self, kind: type[C]) -> list[C]:
        return [each for each in self.bodies if isinstance(each, kind)]


def transfer(handle: int, number: int | None, tag: bytes | None, **fields: Any) -> TransferFrame:
    if number is not None:
        fields.setdefault("message_format", 0)
    return TransferFrame(handle, number, tag, **fields)


def framed(body: Composite, payload: bytes = b"", channel: int = 0) -> bytes:
    content = encode_composite(body) + payload
    head = bytes((2, 0, channel >> 8, channel & 255))
    return (len(content) + 8).to_bytes(4, "big") + head + content


class Peer:
    """The client's side, made of frames, and the engine that it talks to."""

    def __init__(self, **settings: Any) -> None:
        self.engine = AmqpConnection(EngineSettings("server", **settings))

    def say(self, *what: bytes | Composite, channel: int = 0) -> list[Event]:
        """Send headers, frames or raw bytes, and pull all that comes of it."""
        data = b"".join(
            each if isinstance(each, bytes) else encode_frame(channel, each) for each in what
        )
        self.engine.receive_data(data)
        return self.events()

    def events(self) -> list[Event]:
        found = []
        while (event := self.engine.next_event()) is not None:
            found.append(event)
        return found

    def hear(self) -> Answer:
        """Read all that the engine has to send."""
        data = self.engine.data_to_send()
        answer = Answer()
        while data:
            if data.startswith(b"AMQP"):
                answer.headers.append(data[:8])
                data = data[8:]
                continue
            size = int.from_bytes(data[:4], "big")
            frame, data = data[:size], data[size:]
            if frame == HEARTBEAT:
                answer.heartbeats += 1
                continue
            body, end = decode_composite(frame, 8, size)
            answer.bodies.append(body)
            answer.channels.append(int.from_bytes(frame[6:8], "big"))
            answer.payloads.append(frame[end:])
            answer.sizes.append(size)
        return answer

    def opened(self, **fields: Any) -> Peer:
        """Exchange headers and opens."""
        events = self.say(AMQP_HEADER, OpenFrame("client", **fields))
        assert isinstance(events[0], OpenReceived), events
        self.engine.open()
        assert self.events() == []
        self.hear()
        return self

    def begun(self, channel: int = 0, window: int = 1000, **fields: Any) -> AmqpSession:
        begin = BeginFrame(None, 0, window, 1000, **fields)
        (event,) = self.say(begin, channel=channel)
        assert isinstance(event, BeginReceived)
        event.session.begin()
        self.hear()
        return event.session

    def asked(
        self, role: LinkRole, *, handle: int = 0, name: str = "link", **fields: Any
    ) -> AmqpLink:
        """Attach, and leave the answer to the test; `role` is the peer's."""
        count = 0 if role is LinkRole.SENDER else None
        attach = AttachFrame(
            name,
            handle,
            role,
            fields.pop("snd", SenderSettleMode.MIXED),
            fields.pop("rcv", ReceiverSettleMode.FIRST),
            fields.pop("source", SourceTerminus("queue")),
            fields.pop("target", TargetTerminus("queue")),
            initial_delivery_count=fields.pop("initial_delivery_count", count),
            **fields,
        )
        event = self.say(attach)[-1]
        assert isinstance(event, AttachReceived), event
        return event.link

    def sender(self, *, credit: int = 10, **fields: Any) -> AmqpLink:
        """Attach the peer as a sender; the engine grants credit."""
        answer = fields.pop("answer", {})
        link = self.asked(LinkRole.SENDER, **fields)
        link.attach(**answer)
        if credit:
            link.grant(credit)
        self.hear()
        return link

    def receiver(self, **fields: Any) -> AmqpLink:
        answer = fields.pop("answer", {})
        link = self.asked(LinkRole.RECEIVER, **fields)
        link.attach(**answer)
        self.hear()
        return link


def only(events: list[Event], kind: type[E]) -> E:
    found = [each for each in events if isinstance(each, kind)]
    assert len(found) == 1, events
    return found[0]


def state_of(thing: Any) -> str:
    """Name a state without teaching the type checker that it never changes."""
    return str(thing.state.name)
