"""MQTT.js, in a Node.js process that a driver of ours tells what to do."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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

VERSION = "5.16.0"
DRIVER = Path(__file__).parent / "mqttjs" / "driver.js"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "quantum-interop"
INSTALL_SECONDS = 120
_LINE_BYTES_MAX = 8 << 20


@cache
def package() -> Path | str:
    """Return where MQTT.js is, installed if need be, or why it cannot be had."""
    if shutil.which("node") is None:
        return "Node.js is not installed"
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:  # several processes of one run ask for it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed(npm, CACHE / f"mqttjs-{VERSION}-whole")


def _installed(npm: str, place: Path) -> Path | str:
    """Install it beside its place, and move it there when it is whole."""
    if not place.exists():
        with TemporaryDirectory(dir=CACHE) as scratch:
            whole = Path(scratch) / "whole"
            options = ("--no-audit", "--no-fund", f"mqtt@{VERSION}")
            command = [npm, "install", "--prefix", str(whole), *options]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=INSTALL_SECONDS
                )
            except subprocess.TimeoutExpired:
                return "npm did not install MQTT.js in time"
            if done.returncode != 0:
                return f"npm cannot install MQTT.js: {done.stderr[-200:]}"
            whole.rename(place)
    return place / "node_modules" / "mqtt"


class Driver:
    """One Node.js process with all the clients of a test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._reading = asyncio.create_task(self._read())
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self.clients: list[MqttJsClient] = []

    @classmethod
    async def start(cls) -> Driver:
        found = package()
        assert isinstance(found, Path), found
        process = await asyncio.create_subprocess_exec(
            "node",
            str(DRIVER),
            str(found),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
        )
        return cls(process)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if "number" in said:
                answer = self._answers.pop(said["number"])
                if not answer.done():
                    answer.set_result(said)
            else:
                self.clients[said["handle"]].on_event(said)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(RuntimeError("the driver of MQTT.js has ended"))

    def order(self, do: str, **words: Any) -> asyncio.Future[dict[str, Any]]:
        assert self._process.stdin is not None
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"do": do, "number": self._number, **words})
        self._process.stdin.write(line.encode() + b"\n")
        return answer

    async def shut(self) -> None:
        assert self._process.stdin is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._process.stdin.close()
        with suppress(OSError):  # what was still to be said to it
            await self._process.stdin.wait_closed()
        await self._reading


class MqttJs(Library):
    name = "mqttjs"
    can = ~(Can.MANUAL_ACK | Can.SEND_ALIAS | Can.REASONS)  # refusals are errors, no codes

    def __init__(self) -> None:
        self._driver: Driver | None = None

    async def open(self, opening: Opening) -> StockClient:
        if self._driver is None:
            self._driver = await Driver.start()
        client = MqttJsClient(self._driver)
        await client.connect(opening)
        return client

    async def shut(self) -> None:
        if self._driver is not None:
            await self._driver.shut()


class MqttJsClient(StockClient):
    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver
        self._handle = len(driver.clients)
        driver.clients.append(self)

    async def connect(self, opening: Opening) -> None:
        answer = await self._order("open", **_opening(opening))
        if "error" in answer:
            raise Refused(answer["error"])
        self.session_present = answer["session_present"]
        self.assigned_id = answer.get("assigned")

    def on_event(self, said: dict[str, Any]) -> None:
        if said["event"] == "message":
            self._inbox.put_nowait(_got(said))
        elif said["event"] == "told":
            self.end_reason = said["reason"]
        else:
            self.ended.set()

    async def _order(self, do: str, **words: Any) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self._driver.order(do, handle=self._handle, **words)

    async def subscribe(self, wish: Wish) -> int | None:
        options: dict[str, Any] = {
            "qos": wish.qos,
            "nl": wish.no_local,
            "rap": wish.as_published,
            "rh": wish.retain_handling,
        }
        if wish.identifier is not None:
            options["properties"] = {"subscriptionIdentifier": wish.identifier}
        answer = await self._order("subscribe", filter=wish.filter, options=options)
        if "error" in answer:
            return int(answer.get("code") or 0x80)
        return int(answer["granted"])

    async def unsubscribe(self, topic_filter: str) -> None:
        await self._order("unsubscribe", filter=topic_filter)

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        extras: Extras = NO_EXTRAS,
    ) -> int | None:
        options = {"qos": qos, "retain": retain, "properties": _publish_properties(extras)}
        answer = await self._order("publish", topic=topic, payload=_text(payload), options=options)
        if "error" in answer:
            return int(answer.get("code") or 0x80)
        return int(answer["reason"])

    def drop(self) -> None:
        self._driver.order("drop", handle=self._handle)

    async def close(self, *, expiry: int | None = None) -> None:
        options = {} if expiry is None else {"properties": {"sessionExpiryInterval": expiry}}
        if not self.ended.is_set():
            await self._order("close", options=options)


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def _opening(opening: Opening) -> dict[str, Any]:
    words: dict[str, Any] = {
        "host": "localhost" if opening.identity is not None else HOST,
        "port": opening.port,
        "version": opening.version,
        "client_id": opening.client_id,
        "clean": opening.clean,
        "keep_alive": opening.keep_alive,
        "websocket": opening.websocket,
    }
    if opening.version == 5:
        named = {
            "sessionExpiryInterval": opening.expiry,
            "receiveMaximum": opening.receive_maximum,
            "topicAliasMaximum": opening.alias_maximum,
            "maximumPacketSize": opening.packet_maximum,
        }
        words["properties"] = {key: value for key, value in named.items() if value is not None}
    if opening.will is not None:
        will = opening.will
        words["will"] = {
            "topic": will.topic,
            "payload": _text(will.payload),
            "qos": will.qos,
            "retain": will.retain,
        }
        if opening.version == 5:
            words["will"]["properties"] = {"willDelayInterval": will.delay}
    if opening.identity is not None:
        files = opening.identity
        words["identity"] = {
            "authority": str(files.authority),
            "certificate": str(files.certificate),
            "key": str(files.key),
        }
    return words


def _publish_properties(extras: Extras) -> dict[str, Any]:
    user: dict[str, list[str]] = {}
    for key, value in extras.user:
        user.setdefault(key, []).append(value)
    named = {
        "userProperties": user or None,
        "contentType": extras.content_type,
        "responseTopic": extras.response_topic,
        "correlationData": None if extras.correlation is None else _text(extras.correlation),
        "messageExpiryInterval": extras.expiry,
        "payloadFormatIndicator": extras.is_text,
        "topicAlias": extras.alias,
    }
    return {name: value for name, value in named.items() if value is not None}


def _got(said: dict[str, Any]) -> Got:
    found = said["properties"]
    user: list[tuple[str, str]] = []
    for key, value in found.get("userProperties", {}).items():
        user += [(key, each) for each in (value if isinstance(value, list) else [value])]
    correlation = found.get("correlationData")
    extras = Extras(
        tuple(user),
        found.get("contentType"),
        found.get("responseTopic"),
        None if correlation is None else base64.b64decode(correlation),
        found.get("messageExpiryInterval"),
        found.get("payloadFormatIndicator"),
    )
    identifiers = found.get("subscriptionIdentifier", ())
    return Got(
        said["topic"],
        base64.b64decode(said["payload"]),
        said["qos"],
        said["retain"],
        extras,
        tuple(identifiers) if isinstance(identifiers, list) else (identifiers,),
    )
