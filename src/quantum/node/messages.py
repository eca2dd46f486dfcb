"""Publishing, and fetching messages, by request: one short life of a client for each.

A cursor is a session that outlives its requests. Its name and the numbers of the messages that
were answered last are the cursor's text: the next request acknowledges those, so an answer that
got lost is answered again, and nothing is lost between two requests.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from quantum.node.inner_client import ClientLost, InnerClient, InnerClientRefused, peer_of
from quantum.protocols.mqtt.codec import (
    PacketId,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
)
from quantum.protocols.mqtt.session.deliver_out import UPPER_HALF

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

AT_ONCE_MAX: Final = 64
"""Requests of each kind: they must leave room for others at the port that they came by."""
MESSAGE_BYTES_MAX: Final = 1 << 20
ANSWER_SECONDS_MAX: Final = 20.0
"""For everything but waiting for messages: who waits for a leader longer may ask again."""
_LINGER_SECONDS: Final = 0.05
"""How long the first message waits for others that come along with it."""
_ONE: Final = PacketId(1)
_CURSOR: Final = re.compile(r"(rest-[0-9a-f]{24})\.([A-Za-z0-9_-]*)")


class TooManyAtOnce(Exception):
    """As many requests of this kind as a node takes are under way."""


class CursorEnded(Exception):
    """The cursor's session is over: it was not used for as long as it was kept."""


class BadCursor(Exception):
    """Not a cursor that an answer named."""


@dataclass(frozen=True, slots=True)
class MessageCaller:
    """For whom a request is made."""

    tenant: str
    identity: str
    encrypted: bool


@dataclass(frozen=True, slots=True)
class Fetch:
    """What to fetch: by filters anew, or behind a cursor."""

    filters: tuple[str, ...]
    cursor: str | None
    qos: int
    keep_seconds: int
    wait_seconds: float
    messages_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Fetched:
    messages: list[Publish]
    cursor: str | None


class Messages:
    """Carries out requests for messages; each is a client of its own."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._publishing = 0
        self._fetching = 0

    async def publish(self, caller: MessageCaller, message: Publish) -> bool:
        """Publish; say whether a quorum has it (QoS 0 is never acknowledged).

        Raises ClientRefused, ClientLost, TooManyAtOnce and MqttMisuse.
        """
        if self._publishing >= AT_ONCE_MAX:
            raise TooManyAtOnce
        client = self._client(caller, self._draw_id())
        self._publishing += 1
        try:
            async with _in_time():
                await client.connect(
                    clean=True,
                    expiry_seconds=0,
                    receive_maximum=1,
                    packet_bytes_max=MESSAGE_BYTES_MAX,
                )
                return await _publish(client, message)
        finally:
            client.leave()
            self._publishing -= 1

    async def fetch(self, caller: MessageCaller, wanted: Fetch) -> Fetched:
        """Wait for messages; raises as `publish` does, and BadCursor and CursorEnded."""
        acknowledged: tuple[int, ...] = ()
        client_id = self._draw_id()
        if wanted.cursor is not None:
            client_id, acknowledged = _read_cursor(wanted.cursor)
        if self._fetching >= AT_ONCE_MAX:
            raise TooManyAtOnce
        client = self._client(caller, client_id)
        self._fetching += 1
        try:
            async with _in_time():
                await _begin(client, wanted, acknowledged)
            messages = await _gather(client, wanted, frozenset(acknowledged))
        finally:
            client.leave()
            self._fetching -= 1
        if not wanted.keep_seconds:
            return Fetched(messages, None)
        kept = [int(each.packet_id) for each in messages if 0 < each.packet_id < UPPER_HALF]
        return Fetched(messages, _write_cursor(client_id, kept))

    def _client(self, caller: MessageCaller, client_id: str) -> InnerClient:
        peer = peer_of(caller.tenant, caller.identity, encrypted=caller.encrypted)
        return InnerClient(self._service, peer, client_id)

    def _draw_id(self) -> str:
        return "rest-" + self._service.mqtt.draw_client_id().decode().removeprefix("auto-")


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Let an answer take its time, and no longer; raises ClientLost."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            yield
    except TimeoutError:
        raise ClientLost("no answer came in time") from None


async def _publish(client: InnerClient, message: Publish) -> bool:
    if message.qos == 0:
        client.send(message, Pingreq())
        await _until(client, Pingresp)
        return False
    message.packet_id = _ONE
    client.send(message)
    answer = await _until(client, Puback if message.qos == 1 else Pubrec)
    _require_good(answer.reason_code, answer.properties)
    if message.qos == 2:
        client.send(Pubrel(_ONE))
        _require_good((await _until(client, Pubcomp)).reason_code, Properties())
    return True


async def _until(client: InnerClient, kind: type) -> Any:
    while True:
        packet = await client.next()
        if isinstance(packet, kind):
            return packet


def _require_good(reason: ReasonCode, properties: Properties) -> None:
    if reason.is_failure:
        raise InnerClientRefused(reason, properties.reason_string or "")


async def _begin(client: InnerClient, wanted: Fetch, acknowledged: tuple[int, ...]) -> None:
    """Come with the cursor's session, or subscribe anew."""
    await client.connect(
        clean=wanted.cursor is None,
        expiry_seconds=wanted.keep_seconds,
        receive_maximum=wanted.messages_max + len(acknowledged),
        packet_bytes_max=MESSAGE_BYTES_MAX,
    )
    if wanted.cursor is not None:
        if not client.session_present:
            raise CursorEnded
        client.send(*(Puback(PacketId(each)) for each in acknowledged))
        return
    asked = tuple(Subscription(TopicFilter(each.encode()), wanted.qos) for each in wanted.filters)
    client.send(SubscribePacket(_ONE, asked))
    suback = await _until(client, Suback)
    for code in suback.reason_codes:
        _require_good(code, suback.properties)


async def _gather(
    client: InnerClient, wanted: Fetch, acknowledged: frozenset[int]
) -> list[Publish]:
    """Take messages until there are enough, or time is over."""
    messages: list[Publish] = []
    size = 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wanted.wait_seconds
    while len(messages) < wanted.messages_max and size < wanted.bytes_max:
        until = min(deadline, loop.time() + _LINGER_SECONDS) if messages else deadline
        packet = None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                packet = await client.next()
        if packet is None:
            break
        if not isinstance(packet, Publish) or (packet.dup and packet.packet_id in acknowledged):
            continue
        if packet.packet_id >= UPPER_HALF:
            client.send(Puback(packet.packet_id))  # of this connection alone: nobody keeps it
        messages.append(packet)
        size += len(packet.payload) + len(packet.topic)
    return messages


def _read_cursor(text: str) -> tuple[str, tuple[int, ...]]:
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise BadCursor
    packed = found[2] + "=" * (-len(found[2]) % 4)
    try:
        data = base64.urlsafe_b64decode(packed)
        return found[1], struct.unpack(f">{len(data) // 2}H", data)
    except (binascii.Error, struct.error):
        raise BadCursor from None


def _write_cursor(client_id: str, packet_ids: list[int]) -> str:
    packed = struct.pack(f">{len(packet_ids)}H", *packet_ids)
    return f"{client_id}.{base64.urlsafe_b64encode(packed).decode().rstrip('=')}"
