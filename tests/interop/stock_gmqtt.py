"""gmqtt, on the loop of the test."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import gmqtt  # type: ignore[import-untyped]
from gmqtt.mqtt.constants import MQTTv50, MQTTv311  # type: ignore[import-untyped]
from gmqtt.storage import PersistentStorage  # type: ignore[import-untyped]

from tests.interop.mqtt_places import HOST
from tests.interop.stock_client import (
    DEADLINE_SECONDS,
    NO_EXTRAS,
    Can,
    Extras,
    Got,
    Library,
    Opening,
    Refused,
    StockClient,
    Wish,
)

V5 = 5
_NEVER_SECONDS = 3600  # it reconnects by itself, and cannot be told otherwise


class Gmqtt(Library):
    name = "gmqtt"
    can = (
        Can.SESSION_PRESENT
        | Can.GRANTED
        | Can.SEND_ALIAS
        | Can.TAKE_ALIAS
        | Can.SAYS_WHY
        | Can.EXPIRY_AT_END
    )

    async def open(self, opening: Opening) -> StockClient:
        client = GmqttClient(opening)
        await client.connect(opening)
        return client


class GmqttClient(StockClient):
    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self._version = opening.version
        self._storage = PersistentStorage()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._client = gmqtt.Client(
            opening.client_id,
            clean_session=opening.clean,
            persistent_storage=self._storage,
            will_message=_will(opening),
            **(_connect_properties(opening) if opening.version == V5 else {}),
        )
        self._client.set_config({"reconnect_retries": 0, "reconnect_delay": _NEVER_SECONDS})
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_answer
        self._client.on_unsubscribe = self._on_answer
        self._client.on_disconnect = self._on_disconnect

    async def connect(self, opening: Opening) -> None:
        version = MQTTv50 if opening.version == V5 else MQTTv311
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self._client.connect(
                    HOST, opening.port, _context(opening), opening.keep_alive, version
                )
        except (gmqtt.mqtt.handler.MQTTConnectError, OSError) as error:
            raise Refused(str(error)) from error

    def _on_connect(self, _client: Any, flags: int, _reason: int, _properties: Any) -> None:
        self.session_present = bool(flags & 1)

    def _on_message(
        self, _client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        self._inbox.put_nowait(_got(topic, payload, qos, properties))
        return 0

    def _on_answer(self, _client: Any, mid: int, reasons: tuple[int, ...], *_rest: Any) -> None:
        waiting = self._waiting.pop(mid, None)
        if waiting is not None:
            waiting.set_result(reasons[0] if reasons else 0)

    def _on_disconnect(self, _client: Any, packet: Any, *_rest: Any) -> None:
        if isinstance(packet, bytes) and packet:
            self.end_reason = packet[0]
        self.ended.set()

    async def _wait(self, mid: int) -> int:
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[mid] = waiting
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await waiting

    async def subscribe(self, wish: Wish) -> int | None:
        more = {} if wish.identifier is None else {"subscription_identifier": wish.identifier}
        mid = self._client.subscribe(
            wish.filter, wish.qos, wish.no_local, wish.as_published, wish.retain_handling, **more
        )
        return await self._wait(mid)

    async def unsubscribe(self, topic_filter: str) -> None:
        await self._wait(self._client.unsubscribe(topic_filter))

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        extras: Extras = NO_EXTRAS,
    ) -> int | None:
        named = _publish_properties(extras) if self._version == V5 else {}
        self._client.publish(topic, payload, qos, retain, **named)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._storage.wait_empty()
        return None

    def drop(self) -> None:
        self._client._connection._transport.abort()

    async def close(self, *, expiry: int | None = None) -> None:
        more = {} if expiry is None else {"session_expiry_interval": expiry}
        await self._client.disconnect(**more)


def _connect_properties(opening: Opening) -> dict[str, Any]:
    named = {
        "session_expiry_interval": opening.expiry,
        "receive_maximum": opening.receive_maximum,
        "topic_alias_maximum": opening.alias_maximum,
        "maximum_packet_size": opening.packet_maximum,
    }
    return {name: value for name, value in named.items() if value is not None}


def _will(opening: Opening) -> Any:
    will = opening.will
    if will is None:
        return None
    more = {"will_delay_interval": will.delay} if opening.version == V5 else {}
    return gmqtt.Message(will.topic, will.payload, will.qos, will.retain, **more)


def _context(opening: Opening) -> ssl.SSLContext | bool:
    files = opening.identity
    if files is None:
        return False
    context = ssl.create_default_context(cafile=str(files.authority))
    context.load_cert_chain(files.certificate, files.key)
    return context


def _publish_properties(extras: Extras) -> dict[str, Any]:
    named = {
        "user_property": list(extras.user) or None,
        "content_type": extras.content_type,
        "response_topic": extras.response_topic,
        "correlation_data": extras.correlation,
        "message_expiry_interval": extras.expiry,
        "payload_format_id": extras.is_text if extras.is_text is None else int(extras.is_text),
        "topic_alias": extras.alias,
    }
    return {name: value for name, value in named.items() if value is not None}


def _got(topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> Got:
    def first(name: str) -> Any:
        found = properties.get(name)
        return found[0] if found else None

    as_text = first("payload_format_id")
    extras = Extras(
        tuple(tuple(pair) for pair in properties.get("user_property", ())),
        first("content_type"),
        first("response_topic"),
        first("correlation_data"),
        first("message_expiry_interval"),
        None if as_text is None else bool(as_text),
    )
    identifiers = tuple(properties.get("subscription_identifier", ()))
    return Got(topic, bytes(payload), qos, bool(properties["retain"]), extras, identifiers)
