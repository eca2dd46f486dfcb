"""What an AMQP message costs an engine on the server's side, in and out, beside proton's.

    python -m bench.amqp_engine [--messages 20000] [--size 1024] [--rounds 5]

Both engines are fed the very same bytes of a client, in reads of 64 KiB, and are driven as a
broker would: each message is taken with its payload and accepted (one disposition for each read),
or sent unsettled and settled by the client in ranges of 100. No sockets. CPU time, best of the
rounds, which take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import proton
from rich.console import Console
from rich.table import Table

from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpConnection,
    AmqpLink,
    AmqpSession,
    AttachFrame,
    AttachReceived,
    BeginFrame,
    BeginReceived,
    DeliveryReceived,
    DispositionFrame,
    DispositionReceived,
    EngineSettings,
    FlowFrame,
    LinkRole,
    OpenFrame,
    OpenReceived,
    SourceTerminus,
    TargetTerminus,
    encode_data,
    hot,
)
from quantum.protocols.amqp.engine.framing import AMQP_HEADER, encode_frame

READ_BYTES = 65_536
RANGE = 100
FRAME_BYTES = 65_536
WINDOW = 0x7FFFFFFF


def opening(role: LinkRole) -> bytes:
    """What the client says before the first message: headers, open, begin, attach, credit."""
    count = 0 if role is LinkRole.SENDER else None
    attach = AttachFrame(
        "link",
        0,
        role,
        source=SourceTerminus("q"),
        target=TargetTerminus("q"),
        initial_delivery_count=count,
    )
    frames = [OpenFrame("client", None, FRAME_BYTES), BeginFrame(None, 0, WINDOW, WINDOW), attach]
    return AMQP_HEADER + b"".join(encode_frame(0, each) for each in frames)


def incoming(messages: int, size: int) -> list[bytes]:
    """The transfers of a sending client, cut as a socket would."""
    body = encode_data(b"x" * size)
    tags = [number.to_bytes(4, "big") for number in range(messages)]
    data = b"".join(
        hot.transfer_head(0, 0, number, tag, 0, 0, b"", len(body)) + body
        for number, tag in enumerate(tags)
    )
    return [data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES)]


def settling(messages: int) -> list[bytes]:
    """The dispositions of a receiving client."""
    last = messages - 1
    ranges = [(first, min(first + RANGE - 1, last)) for first in range(0, messages, RANGE)]
    return [
        encode_frame(0, DispositionFrame(LinkRole.RECEIVER, first, end, True, AcceptedOutcome()))  # noqa: FBT003
        for first, end in ranges
    ]


class Ours:
    """The engine of this project, driven as a broker drives it."""

    def __init__(self, role: LinkRole, credit: int) -> None:
        self.engine = AmqpConnection(
            EngineSettings("server", frame_bytes_max=FRAME_BYTES, incoming_window=WINDOW)
        )
        self.engine.receive_data(opening(role))
        self.link: AmqpLink | None = None
        self.session: AmqpSession | None = None
        while (event := self.engine.next_event()) is not None:
            if isinstance(event, OpenReceived):
                self.engine.open()
            elif isinstance(event, BeginReceived):
                event.session.begin()
                self.session = event.session
            elif isinstance(event, AttachReceived):
                self.link = event.link
                event.link.attach()
        assert self.link is not None
        if role is LinkRole.SENDER:
            self.link.grant(credit)
        else:
            self.engine.receive_data(encode_frame(0, FlowFrame(0, WINDOW, 0, WINDOW, 0, 0, credit)))
            while self.engine.next_event() is not None:
                pass
        self.engine.data_to_send()

    def take(self, reads: list[bytes]) -> int:
        engine, session = self.engine, self.session
        assert session is not None
        taken = 0
        for data in reads:
            engine.receive_data(data)
            numbers = []
            while (event := engine.next_event()) is not None:
                if type(event) is DeliveryReceived:
                    taken += len(event.payload) > 0
                    numbers.append(event.delivery_id)
            session.settle(numbers, AcceptedOutcome())
            engine.data_to_send()
        return taken

    def give(self, messages: int, body: bytes, settled: list[bytes]) -> int:
        engine, link = self.engine, self.link
        assert link is not None
        done = 0
        for nth, data in enumerate(settled):
            first = nth * RANGE
            for number in range(first, min(first + RANGE, messages)):
                link.send(number.to_bytes(4, "big"), body)
            engine.data_to_send()
            engine.receive_data(data)
            while (event := engine.next_event()) is not None:
                if type(event) is DispositionReceived:
                    done += len(event.deliveries)
        return done


class Protons:
    """proton's engine in the same place."""

    def __init__(self, role: LinkRole, credit: int) -> None:
        self.transport: Any = proton.Transport(proton.Transport.SERVER)
        self.connection: Any = proton.Connection()
        self.collector: Any = proton.Collector()
        self.connection.collect(self.collector)
        self.transport.bind(self.connection)
        self.transport.max_frame_size = FRAME_BYTES
        self.connection.open()
        self._feed(opening(role))
        session: Any = self.connection.session_head(0)
        session.open()
        link: Any = self.connection.link_head(0)
        self.link = link
        link.open()
        if role is LinkRole.SENDER:
            link.flow(credit)
        self._drop_output()
        if role is LinkRole.RECEIVER:
            self._feed(encode_frame(0, FlowFrame(0, WINDOW, 0, WINDOW, 0, 0, credit)))
        self._drop_events()

    def _feed(self, data: bytes) -> None:
        while data:
            room = self.transport.capacity()
            self.transport.push(data[:room])
            data = data[room:]

    def _drop_output(self) -> None:
        size = self.transport.pending()
        while size > 0:
            self.transport.peek(size)
            self.transport.pop(size)
            size = self.transport.pending()

    def _drop_events(self) -> None:
        while self.collector.peek() is not None:
            self.collector.pop()

    def take(self, reads: list[bytes]) -> int:
        taken = 0
        for data in reads:
            rest = data
            while rest:
                room = self.transport.capacity()
                self.transport.push(rest[:room])
                rest = rest[room:]
                while (event := self.collector.peek()) is not None:
                    delivery = event.delivery
                    if delivery is not None and delivery.readable and not delivery.partial:
                        payload = event.receiver.recv(delivery.pending)
                        taken += len(payload) > 0
                        event.receiver.advance()
                        delivery.update(proton.Delivery.ACCEPTED)
                        delivery.settle()
                    self.collector.pop()
            self._drop_output()
        return taken

    def give(self, messages: int, body: bytes, settled: list[bytes]) -> int:
        done = 0
        for nth, data in enumerate(settled):
            first = nth * RANGE
            for number in range(first, min(first + RANGE, messages)):
                self.link.delivery(f"{number:04}")
                self.link.stream(body)
                self.link.advance()
            self._drop_output()
            self._feed(data)
            while (event := self.collector.peek()) is not None:
                delivery = event.delivery
                if delivery is not None and delivery.updated and delivery.settled:
                    delivery.settle()
                    done += 1
                self.collector.pop()
        return done


def microseconds(run: Callable[[], int], messages: int) -> float:
    started = time.process_time()
    done = run()
    spent = time.process_time() - started
    assert done == messages, (done, messages)
    return spent / messages * 1e6


def measure(kind: type[Ours] | type[Protons], messages: int, size: int) -> tuple[float, float]:
    """Return the microseconds of CPU for a message in and for one out."""
    reads = incoming(messages, size)
    taker = kind(LinkRole.SENDER, messages)
    body = encode_data(b"x" * size)
    settled = settling(messages)
    giver = kind(LinkRole.RECEIVER, messages)
    into = microseconds(lambda: taker.take(reads), messages)
    out = microseconds(lambda: giver.give(messages, body, settled), messages)
    return into, out


def scan_alone(messages: int, size: int) -> float:
    data = b"".join(incoming(messages, size))
    return microseconds(lambda: len(hot.scan(data, 0, FRAME_BYTES, messages)[0]), messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    found: dict[type[Ours] | type[Protons], list[tuple[float, float]]] = {Ours: [], Protons: []}
    for _ in range(asked.rounds):
        for kind, rounds in found.items():
            rounds.append(measure(kind, asked.messages, asked.size))
    table = Table(title=f"AMQP engines, server side, {asked.size} B, µs of CPU per message")
    for column in ("engine", "in", "out"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for kind, rounds in found.items():
        name = "this engine" if kind is Ours else f"proton {'.'.join(map(str, proton.VERSION))}"
        into, out = min(each[0] for each in rounds), min(each[1] for each in rounds)
        table.add_row(name, f"{into:.2f}", f"{out:.2f}")
    alone = min(scan_alone(asked.messages, asked.size) for _ in range(asked.rounds))
    table.add_row("the scanner alone", f"{alone:.2f}", "")
    compiled = "compiled" if not str(hot.__file__).endswith(".py") else "plain Python"
    Console().print(table, f"The scanner runs {compiled}.")


if __name__ == "__main__":
    main()
