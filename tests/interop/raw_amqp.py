"""A client of AMQP made of frames, for what stock clients cannot say: links that are resumed."""

from __future__ import annotations

import socket
import time
from typing import Any, Self

from quantum.protocols.amqp.engine import AcceptedOutcome, DeliveryState
from quantum.protocols.amqp.engine.composites import (
    AttachFrame,
    BeginFrame,
    Composite,
    DetachFrame,
    DispositionFrame,
    FlowFrame,
    OpenFrame,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from quantum.protocols.amqp.engine.fields import decode_composite
from quantum.protocols.amqp.engine.types import (
    LinkRole,
    ReceiverSettleMode,
    SenderSettleMode,
    TerminusDurability,
)
from tests.quantum.protocols.amqp.peer import framed

HEADER = b"AMQP\x00\x01\x00\x00"
WAIT = 60.0
_DURABLE = {"durable": TerminusDurability.UNSETTLED_STATE, "expiry_policy": "never"}
Unsettled = dict[bytes, DeliveryState | None]


class RawClient:
    """One connection, one session, one link."""

    def __init__(self, port: int, container: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT)
        self._data = b""
        self.handle = 0
        self.say(HEADER, OpenFrame(container), BeginFrame(None, 0, 2_000, 2_000))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def say(self, *what: bytes | Composite, payload: bytes = b"") -> None:
        frames = [each if isinstance(each, bytes) else framed(each, payload) for each in what]
        self._socket.sendall(b"".join(frames))

    def hear(self, kind: type[Composite]) -> tuple[Any, bytes]:
        """Read until a frame of this kind comes; return it and its payload."""
        while True:
            body, payload = self.next()
            if isinstance(body, kind):
                return body, payload
            assert not isinstance(body, DetachFrame), body

    def next(self) -> tuple[Any, bytes]:
        if self._take(8, peek=True).startswith(b"AMQP"):
            self._take(8)
        size = int.from_bytes(self._take(4, peek=True), "big")
        frame = self._take(size)
        if size == 8:
            return None, b""
        body, end = decode_composite(frame, 8, size)
        return body, frame[end:]

    def _take(self, count: int, *, peek: bool = False) -> bytes:
        while len(self._data) < count:
            more = self._socket.recv(65_536)
            if not more:
                raise ConnectionResetError("the node is gone")
            self._data += more
        found = self._data[:count]
        if not peek:
            self._data = self._data[count:]
        return found

    def attach_sender(
        self, name: str, address: str, unsettled: Unsettled | None
    ) -> Unsettled | None:
        """Attach with a durable target; return the map that the node answers with."""
        target = TargetTerminus(address, **_DURABLE)  # type: ignore[arg-type]
        self._attach(name, LinkRole.SENDER, SourceTerminus("mine"), target, unsettled)
        answer, _ = self.hear(AttachFrame)
        if answer.target is None:
            raise ConnectionResetError("the link is refused")
        assert answer.target.durable == TerminusDurability.UNSETTLED_STATE
        self.hear(FlowFrame)
        found: Unsettled | None = answer.unsettled
        return found

    def attach_receiver(
        self, name: str, address: str, unsettled: Unsettled | None
    ) -> Unsettled | None:
        source = SourceTerminus(address, **_DURABLE)  # type: ignore[arg-type]
        self._attach(name, LinkRole.RECEIVER, source, TargetTerminus("mine"), unsettled)
        answer, _ = self.hear(AttachFrame)
        assert answer.source.durable == TerminusDurability.UNSETTLED_STATE
        found: Unsettled | None = answer.unsettled
        return found

    def _attach(
        self,
        name: str,
        role: LinkRole,
        source: SourceTerminus,
        target: TargetTerminus,
        unsettled: Unsettled | None,
    ) -> None:
        count = 0 if role is LinkRole.SENDER else None
        modes = (SenderSettleMode.UNSETTLED, ReceiverSettleMode.SECOND)
        frame = AttachFrame(
            name, 0, role, *modes, source, target, unsettled, initial_delivery_count=count
        )
        self.say(frame)

    def send(self, number: int, tag: bytes, payload: bytes) -> None:
        self.say(TransferFrame(0, number, tag, 0, settled=False), payload=payload)

    def grant(self, credit: int, received: int = 0) -> None:
        self.say(FlowFrame(0, 2_000, 0, 2_000, 0, received, credit))

    def receive(self) -> tuple[int, bytes, bytes]:
        body, payload = self.hear(TransferFrame)
        return body.delivery_id, body.delivery_tag, payload

    def accept(self, number: int, *, settled: bool = False) -> None:
        state = AcceptedOutcome()
        self.say(DispositionFrame(LinkRole.RECEIVER, number, None, settled, state))

    def accept_range(self, first: int, last: int) -> None:
        """Accept and settle deliveries that follow each other."""
        self.say(DispositionFrame(LinkRole.RECEIVER, first, last, True, AcceptedOutcome()))  # noqa: FBT003 -- a field of the frame

    def detach(self, *, closed: bool) -> None:
        self.say(DetachFrame(0, closed))
        self.hear(DetachFrame)


def connect_raw(ports: list[int], container: str, seconds: float = 120.0) -> RawClient:
    """Connect to whichever node answers."""
    deadline = time.monotonic() + seconds
    while True:
        for port in ports:
            try:
                return RawClient(port, container)
            except OSError:
                assert time.monotonic() < deadline
        time.sleep(0.1)
