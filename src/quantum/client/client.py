"""A client on a socket: the session's bytes go out, its events become futures and messages."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from quantum.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectionLost,
    NotAcknowledged,
    Unreachable,
)
from quantum.client.events import (
    Acknowledged,
    Connected,
    ConnectionEnded,
    Event,
    Received,
    Rejected,
    Silent,
    SubscribeAnswered,
    Token,
)
from quantum.client.session import ClientOptions, ClientSession
from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    PeerFault,
    Properties,
    Publish,
    ReasonCode,
    Subscription,
    TopicName,
)

_FIRST_PAUSE_SECONDS: Final = 0.1
_LAST_PAUSE_SECONDS: Final = 5.0
_MESSAGES_HELD_MAX: Final = 1_000

Jitter: TypeAlias = Callable[[], float]
"""Chance, given at construction: uniform in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a broker is."""

    host: str = "127.0.0.1"
    port: int = 1883
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name that its certificate must have, where that is not `host`."""
    timeout_seconds: float = 10.0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Link(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, owner: MqttClient) -> None:
        self._owner = owner
        self.gone = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self._owner.on_data(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.writable.set()
        self._owner.on_lost(self, exc)


class MqttClient:
    """One client; `async with` connects it and says goodbye.

    With `jitter` it reconnects by itself for ever, and what was promised stays promised;
    without, the end of the connection fails everything that waits.
    """

    def __init__(
        self, endpoint: Endpoint, options: ClientOptions, *, jitter: Jitter | None = None
    ) -> None:
        self.endpoint = endpoint
        self.session = ClientSession(options)
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()
        self._link: _Link | None = None
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Connected] | None = None
        self._pending: dict[Token, asyncio.Future[Acknowledged | SubscribeAnswered]] = {}
        self._messages: deque[Publish] = deque()
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._redial: asyncio.Task[None] | None = None
        self._failure: ClientError | None = None
        self._closing = False
        self.reconnects = 0

    async def __aenter__(self) -> MqttClient:
        try:
            await self._dial()
        except BaseException:
            self._drop()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    # What a person asks for.

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> ReasonCode:
        """Publish; returns when the broker has it (QoS 1, 2), or it was written (QoS 0).

        Raises NotAcknowledged where the broker refuses it, ConnectionLost where nobody knows.
        """
        waiting = self.send(topic, payload, qos=qos, retain=retain, properties=properties)
        if waiting is None:
            return ReasonCode.SUCCESS
        found = await waiting
        assert isinstance(found, Acknowledged)
        if found.reason_code.is_failure:
            raise _refusal(f"a message to {topic}", found.reason_code, found.reason_string)
        return found.reason_code

    def send(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> asyncio.Future[Acknowledged | SubscribeAnswered] | None:
        """Publish without waiting; the future, for QoS 1 and 2, is the broker's answer."""
        self._raise_failure()
        token = self.session.publish(
            TopicName(topic.encode()), payload, qos=qos, retain=retain, properties=properties
        )
        waiting = None if token is None else self._wait_for(token)
        self._write_out()
        return waiting

    async def subscribe(
        self, *subscriptions: Subscription, properties: Properties = NO_PROPERTIES
    ) -> tuple[ReasonCode, ...]:
        """Subscribe; raises NotAcknowledged where any of them is refused."""
        self._raise_failure()
        waiting = self._wait_for(self.session.subscribe(subscriptions, properties))
        self._write_out()
        found = await waiting
        assert isinstance(found, SubscribeAnswered)
        for subscription, code in zip(subscriptions, found.reason_codes, strict=True):
            if code.is_failure:
                what = f"the subscription to {subscription.topic_filter.decode()}"
                raise _refusal(what, code, found.reason_string)
        return found.reason_codes

    async def messages(self) -> AsyncIterator[Publish]:
        """Give what comes in, for ever; raises ConnectionLost when nothing will come again."""
        while True:
            while self._messages:
                message = self._messages.popleft()
                if len(self._messages) == _MESSAGES_HELD_MAX // 2:
                    self._resume_reading()
                yield message
            self._raise_failure()
            self._news.clear()
            await self._news.wait()

    async def writable(self) -> None:
        """Wait while more is written than the network takes."""
        if self._link is not None:
            await self._link.writable.wait()

    async def close(self) -> None:
        """Say goodbye and end the connection."""
        self._closing = True
        if self._redial is not None:
            self._redial.cancel()
            with suppress(asyncio.CancelledError):
                await self._redial
        self.session.disconnect()
        self._write_out()
        link = self._link
        self._drop()
        if link is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(link.gone.wait(), self.endpoint.timeout_seconds)
        self._fail(ConnectionLost("the client was closed"))

    # What its connection calls.

    def on_data(self, link: _Link, data: bytes) -> None:
        if link is not self._link:
            return
        self.session.receive(data)
        try:
            while (event := self.session.next_event()) is not None:
                self._on_event(event)
        except PeerFault as fault:
            self.session.disconnect(fault.reason_code)
            self._write_out()
            self._end(f"{self.endpoint} broke the protocol: {fault}")
            return
        self._write_out()

    def on_lost(self, link: _Link, exc: Exception | None) -> None:
        if link is self._link:
            cause = f": {exc}" if exc is not None else ""
            hint = ""
            if self.endpoint.tls is not None and self._answer and not self._answer.done():
                hint = "; does it trust our certificate?"
            self._end(f"{self.endpoint} ended the connection{cause}{hint}")

    # Inside.

    async def _dial(self) -> Connected:
        self._answer = self._loop.create_future()
        link = _Link(self)
        endpoint = self.endpoint
        try:
            async with asyncio.timeout(endpoint.timeout_seconds):
                transport, _ = await self._loop.create_connection(
                    lambda: link,
                    endpoint.host,
                    endpoint.port,
                    ssl=endpoint.tls,
                    server_hostname=(endpoint.server_name or endpoint.host)
                    if endpoint.tls
                    else None,
                )
                self._link, self._transport = link, transport
                self.session.connect(self._loop.time())
                self._write_out()
                return await self._answer
        except TimeoutError:
            raise Unreachable(f"{endpoint} did not answer in time") from None
        except ConnectionRefusedError:
            raise Unreachable(
                f"nothing listens on {endpoint}: start a broker with `make run`"
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(
                f"the certificate of {endpoint} is not trusted: {error.verify_message}"
            ) from error
        except ssl.SSLError as error:
            raise Unreachable(f"no TLS with {endpoint}: {error.reason or error}") from error
        except OSError as error:
            raise Unreachable(f"cannot reach {endpoint}: {error.strerror or error}") from error

    def _on_event(self, event: Event) -> None:
        match event:
            case Received():
                self._messages.append(event.message)
                if len(self._messages) >= _MESSAGES_HELD_MAX and self._transport is not None:
                    self._transport.pause_reading()
                self._news.set()
            case Acknowledged() | SubscribeAnswered():
                waiting = self._pending.pop(event.token, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(event)
            case Connected():
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(event)
                self._set_timer()
            case Rejected():
                self._end(
                    f"{self.endpoint} refused the connection: {_said(event)}",
                    refused=event.reason_code,
                )
            case ConnectionEnded():
                self._end(
                    f"{self.endpoint} ended the connection: {_said(event)}", event.reason_code
                )
            case Silent():
                self._end(f"{self.endpoint} does not answer pings")

    def _end(
        self,
        sentence: str,
        reason_code: ReasonCode | None = None,
        *,
        refused: ReasonCode | None = None,
    ) -> None:
        """The connection is over: dial again, or fail everything that waits."""
        self._drop()
        error: ClientError = ConnectionLost(sentence, reason_code)
        if refused is not None:
            error = BrokerRefused(sentence, refused)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            return
        if self._jitter is None or self._closing or reason_code is ReasonCode.SESSION_TAKEN_OVER:
            self._fail(error)
        elif self._redial is None:
            self._redial = self._loop.create_task(self._dial_until_there(self._jitter))

    async def _dial_until_there(self, jitter: Jitter) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause * (0.5 + 0.5 * jitter()))
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)
            try:
                await self._dial()
            except BrokerRefused as error:
                self._fail(error)
                break
            except ClientError:
                self._drop()
                continue
            self.reconnects += 1
            break
        self._redial = None

    def _drop(self) -> None:
        self.session.lost()
        transport, self._transport, self._link = self._transport, None, None
        if transport is not None:
            transport.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: ClientError) -> None:
        self._failure = self._failure or error
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # who does not wait for it does not miss it
        self._pending.clear()
        self._news.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait_for(self, token: Token) -> asyncio.Future[Acknowledged | SubscribeAnswered]:
        waiting: asyncio.Future[Acknowledged | SubscribeAnswered] = self._loop.create_future()
        self._pending[token] = waiting
        return waiting

    def _write_out(self) -> None:
        if self._transport is not None:
            data = self.session.take_outgoing(self._loop.time())
            if data:
                self._transport.write(data)

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _set_timer(self) -> None:
        deadline = self.session.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        event = self.session.on_time(self._loop.time())
        if event is not None:
            self._on_event(event)
            return
        self._write_out()
        self._set_timer()


def _said(event: Rejected | ConnectionEnded) -> str:
    name = event.reason_code.name.replace("_", " ").lower()
    said = f" ({event.reason_string})" if event.reason_string else ""
    return f"{name}, 0x{event.reason_code:02X}{said}"


def _refusal(what: str, code: ReasonCode, reason_string: str | None) -> NotAcknowledged:
    said = f" ({reason_string})" if reason_string else ""
    name = code.name.replace("_", " ").lower()
    return NotAcknowledged(f"the broker refused {what}: {name}, 0x{code:02X}{said}", code)
