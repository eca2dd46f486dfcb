"""A load generator: many clients in one loop, each with some publishes open at a time.

The sessions are those of the ordinary client, so the load is correct MQTT; nothing is awaited
per message. One process of this drives a broker to some ten thousand publishes a second: what it
measures beyond that is itself.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

from quantum.client.client import Endpoint
from quantum.client.errors import BrokerRefused, ClientError, ConnectionLost, Unreachable
from quantum.client.events import (
    Acknowledged,
    Connected,
    Received,
    Rejected,
    SubscribeAnswered,
    Token,
)
from quantum.client.session import ClientOptions, ClientSession
from quantum.protocols.mqtt.codec import (
    PeerFault,
    ProtocolVersion,
    Subscription,
    TopicFilter,
    TopicName,
)

_BURST: Final = 64
_TICK_SECONDS: Final = 0.01
_DRAIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is done to the broker."""

    publishers: int = 50
    subscribers: int = 0
    qos: int = 1
    payload_bytes: int = 64
    seconds: float = 10.0
    window: int = 10
    """Publishes that each client has open at a time, without a rate."""
    per_second: float = 0.0
    """Of all clients together, whatever the broker does; 0: as fast as it answers."""
    topic: str = "bench"
    version: ProtocolVersion = ProtocolVersion.V5


@dataclass(slots=True)
class LoadCounts:
    """What has happened so far."""

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    received: int = 0
    lost_connections: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    """From publish to its last acknowledgement, in seconds."""


def percentile(sorted_values: list[float], share: float) -> float:
    """Return the smallest value that at least `share` of all are not above."""
    if not sorted_values:
        return 0.0
    return sorted_values[max(0, min(len(sorted_values), round(share * len(sorted_values))) - 1)]


class _LoadClient(asyncio.Protocol):
    """One client: it publishes while it may, or only listens."""

    def __init__(self, load: LoadRun, number: int, *, subscribes: bool) -> None:
        kind = "sub" if subscribes else "pub"
        options = ClientOptions(f"load-{kind}-{number}", load.plan.version, keep_alive=0)
        self.session = ClientSession(options)
        self.ready: asyncio.Future[None] = load.loop.create_future()
        self._load = load
        self._subscribes = subscribes
        self._topic = TopicName(f"{load.plan.topic}/{number}".encode())
        self._started: dict[Token, float] = {}
        self._transport: asyncio.Transport | None = None
        self._writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.session.connect(0.0)
        self._write_out()

    def data_received(self, data: bytes) -> None:
        self.session.receive(data)
        try:
            self._take_events()
        except PeerFault as fault:
            self._fail(ConnectionLost(f"the broker broke the protocol: {fault}"))
            return
        if self._load.publishing and not self._load.plan.per_second:
            self.fill()
        self._write_out()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._load.closing:
            self._load.counts.lost_connections += 1
            self._fail(ConnectionLost(f"a connection was lost: {exc or 'the broker ended it'}"))

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._load.publishing and not self._load.plan.per_second:
            self.fill()
            self._write_out()

    @property
    def open(self) -> int:
        return len(self._started)

    def fill(self) -> None:
        """Open as many publishes as the window allows; of QoS 0 a burst for each turn."""
        if self._subscribes:
            return
        if self._load.plan.qos:
            self.publish(self._load.plan.window - len(self._started))
        elif self._writable:
            self.publish(_BURST)
            self._load.loop.call_soon(self._next_burst)

    def publish(self, count: int) -> None:
        if self._transport is None:
            return
        plan, counts = self._load.plan, self._load.counts
        now = self._load.loop.time()
        for _ in range(count):
            token = self.session.publish(self._topic, self._load.payload, qos=plan.qos)
            counts.sent += 1
            if token is not None:
                self._started[token] = now

    def flush(self) -> None:
        self._write_out()

    def close(self) -> None:
        if self._transport is not None:
            self.session.disconnect()
            self._write_out()
            self._transport.close()

    def _next_burst(self) -> None:
        if self._load.publishing and self._writable and self._transport is not None:
            self.fill()
            self._write_out()

    def _take_events(self) -> None:
        counts = self._load.counts
        while (event := self.session.next_event()) is not None:
            if isinstance(event, Acknowledged):
                started = self._started.pop(event.token)
                counts.latencies.append(self._load.loop.time() - started)
                counts.acknowledged += 1
                counts.refused += event.reason_code.is_failure
            elif isinstance(event, Received):
                counts.received += 1
            elif isinstance(event, Connected):
                self._on_connected()
            elif isinstance(event, SubscribeAnswered):
                self.ready.set_result(None)
            elif isinstance(event, Rejected):
                self._fail(BrokerRefused(f"the broker refused a client: {event.reason_code.name}"))

    def _on_connected(self) -> None:
        if not self._subscribes:
            self.ready.set_result(None)
            return
        everything = TopicFilter(f"{self._load.plan.topic}/#".encode())
        self.session.subscribe((Subscription(everything, self._load.plan.qos),))

    def _fail(self, error: ClientError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def _write_out(self) -> None:
        if self._transport is not None and (data := self.session.take_outgoing(0.0)):
            self._transport.write(data)


class LoadRun:
    """One run against one broker."""

    def __init__(self, endpoint: Endpoint, plan: LoadPlan) -> None:
        self.plan = plan
        self.payload = b"x" * plan.payload_bytes
        self.counts = LoadCounts()
        self.publishing = False
        self.closing = False
        self.elapsed = 0.0
        self.loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._publishers: list[_LoadClient] = []
        self._subscribers: list[_LoadClient] = []

    async def run(self, on_progress: Callable[[LoadRun], None], every_seconds: float = 0.5) -> None:
        """Connect, publish for the plan's time, wait for what is open, and leave."""
        try:
            await self._connect()
            await self._publish(on_progress, every_seconds)
        finally:
            self.closing = True
            for client in self._publishers + self._subscribers:
                client.close()
            await asyncio.sleep(0)

    async def _connect(self) -> None:
        for number in range(self.plan.subscribers):
            self._subscribers.append(await self._dial(number, subscribes=True))
        for number in range(self.plan.publishers):
            self._publishers.append(await self._dial(number, subscribes=False))

    async def _dial(self, number: int, *, subscribes: bool) -> _LoadClient:
        client = _LoadClient(self, number, subscribes=subscribes)
        at = self._endpoint
        name = (at.server_name or at.host) if at.tls else None
        try:
            async with asyncio.timeout(at.timeout_seconds):
                await self.loop.create_connection(
                    lambda: client, at.host, at.port, ssl=at.tls, server_hostname=name
                )
                await client.ready
        except TimeoutError:
            raise Unreachable(f"{at} did not answer in time") from None
        except OSError as error:
            raise Unreachable(
                f"nothing listens on {at}: start a broker with `make run`"
                if isinstance(error, ConnectionRefusedError)
                else f"cannot reach {at}: {error}"
            ) from error
        return client

    async def _publish(self, on_progress: Callable[[LoadRun], None], every_seconds: float) -> None:
        started = self.loop.time()
        ends = started + self.plan.seconds
        self.publishing = True
        if not self.plan.per_second:
            for client in self._publishers:
                client.fill()
                client.flush()
        shown = started
        while (now := self.loop.time()) < ends and self.counts.lost_connections == 0:
            if self.plan.per_second:
                self._publish_at_rate(now - started)
            if now - shown >= every_seconds:
                shown = now
                self.elapsed = now - started
                on_progress(self)
            await asyncio.sleep(min(_TICK_SECONDS, max(0.0, ends - now)))
        self.publishing = False
        self.elapsed = self.loop.time() - started
        await self._finish()
        on_progress(self)

    def _publish_at_rate(self, elapsed: float) -> None:
        due = int(elapsed * self.plan.per_second) - self.counts.sent
        for _ in range(due):
            self._publishers[self.counts.sent % len(self._publishers)].publish(1)
        for client in self._publishers:
            client.flush()

    async def _finish(self) -> None:
        """Wait for the acknowledgements of what is open."""
        deadline = self.loop.time() + _DRAIN_SECONDS
        while any(client.open for client in self._publishers):
            if self.loop.time() > deadline or self.counts.lost_connections:
                return
            await asyncio.sleep(_TICK_SECONDS)
