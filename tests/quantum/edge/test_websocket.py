"""MQTT over WebSocket on real sockets, with frames that the test builds itself."""

from __future__ import annotations

import asyncio
import random
import struct
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from websockets.frames import Frame, Opcode

from clustor.runtime.containment import contained
from quantum.edge.listener import Listener
from quantum.edge.websocket import WebSocketLimits, over_websocket
from tests.quantum.edge.recording import Clients, Handlers, limits, listening, rest_of

HEAD = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: " + b64encode(bytes(16)) + b"\r\nSec-WebSocket-Version: 13\r\n"
)
MQTT = b"Sec-WebSocket-Protocol: mqtt\r\n"
REQUEST = HEAD + MQTT + b"\r\n"
SMALL = WebSocketLimits(head_bytes_max=1000, frame_bytes_max=1000)


def frame(opcode: Opcode, data: bytes, *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=mask)


def binary(data: bytes, *, fin: bool = True) -> bytes:
    return frame(Opcode.BINARY, data, fin=fin)


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def upgrade(self, request: bytes = REQUEST) -> bytes:
        self.writer.write(request)
        return await self.reader.readuntil(b"\r\n\r\n")

    async def frame(self) -> tuple[int, bytes]:
        """Read one frame of the server: never masked, short here."""
        head = await self.reader.readexactly(2)
        length = head[1]
        if length == 126:
            length = struct.unpack(">H", await self.reader.readexactly(2))[0]
        return head[0], await self.reader.readexactly(length)


@asynccontextmanager
async def serving(handlers: Handlers, **bounds: float) -> AsyncIterator[tuple[Listener, Clients]]:
    edge = limits(**bounds)  # type: ignore[arg-type]
    async with listening(over_websocket({"mqtt": handlers}, SMALL), edge) as served:
        yield served


async def test_bytes_travel_in_binary_frames_both_ways() -> None:
    handlers = Handlers()
    async with serving(handlers) as (_, connect):
        client = Client(*await connect())
        head = await client.upgrade()
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"\r\nSec-WebSocket-Protocol: mqtt\r\n" in head
        assert b"Sec-WebSocket-Extensions" not in head
        client.writer.write(binary(b"hello"))
        assert await client.frame() == (0x82, b"HELLO")
        (handler,) = handlers.made
        assert handler.peer is not None
        assert (handler.peer.transport, handler.peer.tenant) == ("ws", "dev")


async def test_the_upgrade_and_frames_may_come_byte_by_byte() -> None:
    handlers = Handlers(lambda _data: b"")
    async with serving(handlers) as (_, connect):
        client = Client(*await connect())
        for byte in REQUEST[:-1]:
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await client.upgrade(REQUEST[-1:])
        for byte in binary(b"abc") + frame(Opcode.PING, b"p"):
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.frame() == (0x8A, b"p")
        assert handlers.made[0].data == b"abc"


async def test_fragments_are_passed_on_with_pings_between_them() -> None:
    handlers = Handlers()
    async with serving(handlers) as (_, connect):
        client = Client(*await connect())
        await client.upgrade()
        client.writer.write(binary(b"ab", fin=False))
        assert await client.frame() == (0x82, b"AB")  # no wait for the last fragment
        client.writer.write(frame(Opcode.PING, b"still there?"))
        client.writer.write(frame(Opcode.CONT, b"", fin=False) + frame(Opcode.CONT, b"cd"))
        assert await client.frame() == (0x8A, b"still there?")
        assert await client.frame() == (0x82, b"CD")


async def test_the_clients_last_words_before_its_close_are_heard() -> None:
    handlers = Handlers(lambda _data: b"")
    async with serving(handlers) as (_, connect):
        client = Client(*await connect())
        await client.upgrade()
        client.writer.write(binary(b"disconnect") + frame(Opcode.CLOSE, struct.pack(">H", 1000)))
        assert await client.frame() == (0x88, struct.pack(">H", 1000))
        assert await rest_of(client.reader) == b""
        await handlers.made[0].ended.wait()
        assert handlers.made[0].data == b"disconnect"


async def test_our_close_waits_for_the_clients_answer() -> None:
    handlers = Handlers()
    async with serving(handlers) as (_, connect):
        client = Client(*await connect())
        await client.upgrade()
        client.writer.write(binary(b"a"))
        await client.frame()
        wire = handlers.made[0].wire
        assert wire is not None
        wire.write(b"goodbye")
        wire.close()
        wire.write(b"never sent")
        assert await client.frame() == (0x82, b"goodbye")
        assert await client.frame() == (0x88, struct.pack(">H", 1000))
        client.writer.write(binary(b"too late") + frame(Opcode.CLOSE, struct.pack(">H", 1000)))
        assert await rest_of(client.reader) == b""
        await handlers.made[0].ended.wait()
        assert handlers.made[0].data == b"a"


async def test_a_client_that_never_answers_our_close_is_cut() -> None:
    handlers = Handlers()
    async with serving(handlers, close_seconds=0.05) as (_, connect):
        client = Client(*await connect())
        await client.upgrade()
        client.writer.write(binary(b"a"))
        await client.frame()
        assert handlers.made[0].wire is not None
        handlers.made[0].wire.close()
        await handlers.made[0].ended.wait()


async def in_time(story: Callable[[float], Awaitable[None]]) -> None:
    """Live through a story with a deadline; who was cut before it came so far gets a later one."""
    for seconds in (0.05, 0.5, 5.0, 50.0):
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            return await story(seconds)
    raise AssertionError("nobody was upgraded in time")


async def test_an_upgrade_without_a_first_packet_is_cut() -> None:
    await in_time(_be_upgraded_and_cut)


async def _be_upgraded_and_cut(seconds: float) -> None:
    handlers = Handlers(lambda _data: b"")
    async with serving(handlers, first_answer_seconds=seconds) as (listener, connect):
        client = Client(*await connect())
        await client.upgrade()
        client.writer.write(binary(b"\x10"))
        assert await rest_of(client.reader) == b""
        assert listener.lobby.counts.late == 1


async def test_who_was_answered_may_stay_silent() -> None:
    await in_time(_be_answered_and_silent)


async def _be_answered_and_silent(seconds: float) -> None:
    async with serving(Handlers(), first_answer_seconds=seconds) as (_, connect):
        client = Client(*await connect())
        await client.upgrade()
        client.writer.write(binary(b"a"))
        await client.frame()
        silent = Client(*await connect())
        await silent.upgrade()
        assert await rest_of(silent.reader) == b""  # the deadline of both has passed
        client.writer.write(binary(b"b"))
        assert await client.frame() == (0x82, b"B")


VIOLATIONS = {
    "a text frame": (frame(Opcode.TEXT, b"hi"), 1003),
    "an unmasked frame": (frame(Opcode.BINARY, b"hi", mask=False), 1002),
    "a frame beyond the bound": (binary(b"x" * 1001), 1009),
    "a frame that only claims to be huge": (b"\x82\xff" + struct.pack(">Q", 1 << 62), 1009),
    "a reserved bit": (b"\xc2\x80" + bytes(4), 1002),
    "an unknown opcode": (b"\x83\x80" + bytes(4), 1002),
    "a fragmented ping": (b"\x09\x80" + bytes(4), 1002),
    "a long ping": (b"\x89\xfe\x00\x7e" + bytes(4 + 126), 1002),
    "a continuation of nothing": (frame(Opcode.CONT, b"x"), 1002),
    "a new message inside another": (binary(b"a", fin=False) + binary(b"b"), 1002),
    "a close frame of one byte": (b"\x88\x81" + bytes(5), 1002),
}


@pytest.mark.parametrize(("bad", "code"), VIOLATIONS.values(), ids=VIOLATIONS.keys())
async def test_a_violation_closes_with_its_code(bad: bytes, code: int) -> None:
    handlers = Handlers(lambda _data: b"")
    async with serving(handlers) as (_, connect):
        client = Client(*await connect())
        await client.upgrade()
        client.writer.write(bad)
        first, reason = await client.frame()
        assert first == 0x88
        assert struct.unpack(">H", reason[:2])[0] == code
        assert await rest_of(client.reader) == b""
        await handlers.made[0].ended.wait()


REFUSALS = {
    "no sub-protocol": (HEAD + b"\r\n", b"400"),
    "another sub-protocol": (HEAD + b"Sec-WebSocket-Protocol: chat\r\n\r\n", b"400"),
    "a page of elsewhere": (HEAD + MQTT + b"Origin: https://evil.example\r\n\r\n", b"403"),
    "no upgrade": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"426"),
    "not a GET": (REQUEST.replace(b"GET", b"POST"), b"405"),
    "another version": (REQUEST.replace(b"Version: 13", b"Version: 8"), b"400"),
    "a long head": (HEAD + b"X: " + b"y" * 1000, b"431"),
}


@pytest.mark.parametrize(("request_", "status"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_request_that_is_refused_is_told_why(request_: bytes, status: bytes) -> None:
    handlers = Handlers()
    async with serving(handlers) as (_, connect):
        client = Client(*await connect())
        client.writer.write(request_)
        answer = await rest_of(client.reader)
        assert answer.startswith(b"HTTP/1.1 " + status + b" "), answer
        assert handlers.made == []


@pytest.mark.parametrize("origin", [b"http://localhost:3000", b"http://127.0.0.1", b"http://[::1]"])
async def test_a_page_of_this_machine_may_connect(origin: bytes) -> None:
    async with serving(Handlers()) as (_, connect):
        client = Client(*await connect())
        head = await client.upgrade(HEAD + MQTT + b"Origin: " + origin + b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")


async def test_raw_mqtt_on_this_port_is_closed() -> None:
    handlers = Handlers()
    async with serving(handlers) as (_, connect):
        client = Client(*await connect())
        client.writer.write(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n")
        assert await rest_of(client.reader) == b""
        assert handlers.made == []


async def test_pings_of_a_client_that_does_not_read_cost_bounded_memory() -> None:
    handlers = Handlers(lambda _data: b"")
    async with serving(handlers) as (_, connect):
        client = Client(*await connect(limit=1 << 10))
        await client.upgrade()
        client.writer.write(binary(b"a"))
        pings = frame(Opcode.PING, b"x" * 125) * 500
        for _ in range(2000):
            client.writer.write(pings)
            try:
                await client.writer.drain()
            except ConnectionError:
                break
        else:
            pytest.fail("pings were answered without end")


@pytest.mark.parametrize("seed", range(10))
async def test_rubbish_after_the_upgrade_hurts_nobody_else(seed: int) -> None:
    rng = random.Random(seed)
    handlers = Handlers(lambda _data: b"")
    async with serving(handlers, close_seconds=0.2) as (_, connect):
        bystander = Client(*await connect())
        await bystander.upgrade()
        client = Client(*await connect())
        client.writer.write((REQUEST if seed % 2 else b"") + rng.randbytes(rng.randint(1, 3000)))
        client.writer.write_eof()
        await rest_of(client.reader)
        bystander.writer.write(frame(Opcode.PING, b"me"))
        assert await bystander.frame() == (0x8A, b"me")


async def test_a_head_with_nonsense_behind_it_is_refused_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library had ended the connection for the nonsense before the head was answered."""
    monkeypatch.setattr(contained, "raising", False)
    before = dict(contained.counts)
    async with serving(Handlers()) as (_, connect):
        for head in (HEAD + MQTT, b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n"):
            reader, writer = await connect()
            writer.write(head + b"\r\n" + b"\xff\xff\xff\xff")
            await reader.read()
            writer.close()
    assert contained.counts == before
