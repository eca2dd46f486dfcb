"""Plaintext connections on real sockets: the handler's life, backpressure, and bad clients."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import suppress

import pytest

from quantum.edge.errors import AddressRefused, ListenFailed
from quantum.edge.listener import HELD_BYTES_MAX, Listener, ListenerConnection, require_loopback
from quantum.edge.ports import ConnectionPeer
from tests.clustor.runtime.waiting import until
from tests.quantum.edge.recording import HOST, Handlers, limits, listening, rest_of


async def test_the_handler_lives_from_the_first_bytes_to_the_end() -> None:
    handlers = Handlers()
    async with listening(handlers) as (_listener, connect):
        reader, writer = await connect()
        host, port = writer.get_extra_info("sockname")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        writer.close()
        (handler,) = handlers.made
        await handler.ended.wait()
        assert handler.events == ["opened", "received", "lost"]
        assert handler.peer == ConnectionPeer("tcp", f"{host}:{port}", "dev")
        assert handler.wire is not None
        handler.wire.write(b"to nobody")  # none of these may raise after the end
        handler.wire.pause_reading()
        handler.wire.resume_reading()
        handler.wire.close()
        handler.wire.abort()


async def test_who_says_nothing_gets_no_handler() -> None:
    handlers = Handlers()
    async with listening(handlers) as (listener, connect):
        _, writer = await connect()
        await until(lambda: listener.connections == 1, "the connection is there")
        writer.close()
        await until(lambda: listener.connections == 0, "the connection is gone")
    assert handlers.made == []


async def test_close_sends_what_was_written_before_it() -> None:
    answer = b"x" * 3_000_000
    handlers = Handlers(lambda _data: answer)
    async with listening(handlers) as (_listener, connect):
        reader, writer = await connect()
        writer.write(b"?")
        await until(lambda: bool(handlers.made and handlers.made[0].data), "the question is there")
        wire = handlers.made[0].wire
        assert wire is not None
        wire.close()
        wire.write(b"never sent")
        assert await reader.read(-1) == answer


async def test_abort_sends_nothing_more() -> None:
    handlers = Handlers(lambda _data: b"")
    async with listening(handlers) as (_listener, connect):
        reader, writer = await connect()
        writer.write(b"?")
        await until(lambda: bool(handlers.made), "the handler is there")
        wire = handlers.made[0].wire
        assert wire is not None
        wire.abort()
        await handlers.made[0].ended.wait()
        assert await rest_of(reader) == b""


async def test_a_reader_that_stops_is_seen_and_its_return_is_told() -> None:
    handlers = Handlers(lambda _data: b"")
    async with listening(handlers) as (_listener, connect):
        reader, writer = await connect(limit=1 << 10)
        writer.write(b"?")
        await until(lambda: bool(handlers.made), "the handler is there")
        handler = handlers.made[0]
        assert handler.wire is not None
        written = 0
        while handler.wire.writable:
            handler.wire.write(b"x" * 65_536)
            written += 65_536
            await asyncio.sleep(0)
            assert written < 64 << 20, "backpressure never came"
        taken = 0
        while taken < written:
            taken += len(await reader.read(65_536))
        await handler.drained.wait()


async def test_reading_can_be_paused_and_resumed() -> None:
    handlers = Handlers()
    async with listening(handlers) as (_listener, connect):
        reader, writer = await connect()
        writer.write(b"a")
        await reader.readexactly(1)
        handler = handlers.made[0]
        assert handler.wire is not None
        handler.wire.pause_reading()
        writer.write(b"b" * 8)
        other = await connect()
        other[1].write(b"c")
        assert await other[0].readexactly(1) == b"C"  # a full turn of the loop has passed
        assert handler.data == b"a"
        handler.wire.resume_reading()
        assert await reader.readexactly(8) == b"B" * 8
        other[1].close()


@pytest.mark.parametrize("said", [b"", b"\x10"], ids=["silent", "a first byte and no more"])
async def test_a_client_that_does_not_finish_its_first_packet_is_cut(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers(lambda _data: b"")
    with caplog.at_level(logging.WARNING, "quantum.edge"):
        async with listening(handlers, limits(first_answer_seconds=0.05)) as (listener, connect):
            reader, writer = await connect()
            writer.write(said)
            assert await rest_of(reader) == b""
            writer.close()
            assert listener.lobby.counts.late == 1
    (record,) = caplog.records
    assert "did not finish its first packet in time" in record.getMessage()
    assert HOST in record.getMessage()


async def test_a_slow_drip_does_not_extend_the_deadline() -> None:
    handlers = Handlers(lambda _data: b"")
    async with listening(handlers, limits(first_answer_seconds=0.1)) as (_listener, connect):
        reader, writer = await connect()
        drips = 0
        while not reader.at_eof() and reader.exception() is None:
            writer.write(b"\x10")
            drips += 1
            await asyncio.sleep(0.01)
            assert drips < 1000, "the drip was never cut"
        for handler in handlers.made:  # none, if not even its first byte came in time
            await handler.ended.wait()


async def test_who_was_answered_may_stay_silent() -> None:
    """Whoever was not answered in time is cut, and gets a later deadline."""
    for seconds in (0.02, 0.2, 2.0, 20.0):
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await _be_answered_and_silent(seconds)
            return
    raise AssertionError("nobody was answered in time")


async def _be_answered_and_silent(seconds: float) -> None:
    handlers = Handlers()
    async with listening(handlers, limits(first_answer_seconds=seconds)) as (_listener, connect):
        reader, writer = await connect()
        writer.write(b"a")
        await reader.readexactly(1)
        silent, _ = await connect()
        assert await rest_of(silent) == b""  # the deadline of both has passed
        writer.write(b"b")
        assert await reader.readexactly(1) == b"B"
        writer.close()


async def test_a_peer_that_does_not_take_the_last_words_is_cut() -> None:
    handlers = Handlers(lambda _data: b"x" * 32_000_000)
    async with listening(handlers, limits(close_seconds=0.05)) as (listener, _connect):
        with socket.create_connection((HOST, listener.port)) as client:
            client.sendall(b"?")
            await until(lambda: bool(handlers.made and handlers.made[0].data), "it was asked")
            assert handlers.made[0].wire is not None
            handlers.made[0].wire.close()
            await handlers.made[0].ended.wait()


async def test_beyond_the_maximum_nobody_comes_in_until_somebody_leaves() -> None:
    handlers = Handlers()
    async with listening(handlers, limits(connections_max=2)) as (listener, connect):
        inside = [await connect() for _ in range(2)]
        await until(lambda: listener.connections == 2, "two are there")
        reader, writer = await connect()
        assert await rest_of(reader) == b""
        writer.close()
        assert listener.lobby.counts.turned_away == 1
        inside[0][1].close()
        await until(lambda: listener.connections == 1, "one has left")
        reader, writer = await connect()
        writer.write(b"a")
        assert await reader.readexactly(1) == b"A"
        writer.close()


async def test_a_storm_waits_at_the_door_and_all_are_served_in_the_end() -> None:
    handlers = Handlers()
    storm = limits(burst=3, per_second=200.0, waiting_max=100)
    async with listening(handlers, storm) as (listener, connect):
        clients = [await connect() for _ in range(20)]
        for _, writer in clients:
            writer.write(b"a")
        for reader, writer in clients:
            assert await reader.readexactly(1) == b"A"
            writer.close()
        counts = listener.lobby.counts
        assert counts.admitted == 20 and counts.turned_away == 0
        assert counts.delayed > 0


async def test_a_full_waiting_room_turns_away() -> None:
    handlers = Handlers()
    full = limits(burst=1, per_second=0.001, waiting_max=1)
    async with listening(handlers, full) as (_listener, connect):
        first, waits, refused = [await connect() for _ in range(3)]
        assert await rest_of(refused[0]) == b""
        waits[1].write(b"a")
        first[1].write(b"a")
        assert await first[0].readexactly(1) == b"A"
        assert len(handlers.made) == 1


class DoorTransport(asyncio.Transport):
    """A transport that reads although it was asked not to, as uvloop's does for one turn."""

    aborted = False

    def pause_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(("said", "cut"), [(HELD_BYTES_MAX, False), (HELD_BYTES_MAX + 1, True)])
async def test_who_talks_too_much_at_the_door_is_cut(said: int, cut: bool) -> None:
    full = limits(burst=1, per_second=0.001, waiting_max=5)
    async with listening(Handlers(), full) as (listener, connect):
        await connect()
        await until(lambda: listener.connections == 1, "the first took the only token")
        waits, transport = ListenerConnection(listener), DoorTransport()
        waits.connection_made(transport)
        waits.data_received(b"x" * 1000)
        waits.data_received(b"x" * (said - 1000))
        assert transport.aborted == cut
        waits.connection_lost(None)


async def test_a_reset_connection_is_lost_once() -> None:
    handlers = Handlers()
    async with listening(handlers) as (listener, _connect):
        client = socket.create_connection((HOST, listener.port))
        client.sendall(b"a")
        await until(lambda: bool(handlers.made and handlers.made[0].data), "it came in")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await handlers.made[0].ended.wait()
        assert handlers.made[0].events.count("lost") == 1


async def test_a_taken_port_is_named() -> None:
    async with listening(Handlers()) as (listener, _connect):
        other = Listener("mqtts", listener.lobby, Handlers())
        with pytest.raises(ListenFailed, match=rf"mqtts.*{HOST}:{listener.port}"):
            await other.start(HOST, listener.port)


@pytest.mark.parametrize(
    ("host", "development", "says"),
    {
        "not in development": ("127.0.0.1", False, "development mode only"),
        "everywhere": ("0.0.0.0", True, "loopback only"),
        "a name of the network": ("broker.example", True, "loopback only"),
    }.values(),
)
def test_plaintext_is_for_loopback_in_development(host: str, development: bool, says: str) -> None:
    """C15."""
    with pytest.raises(AddressRefused, match=says):
        require_loopback("mqtt", host, development=development)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_loopback(host: str) -> None:
    require_loopback("mqtt", host, development=True)


async def test_who_does_not_read_its_answers_is_not_read_either() -> None:
    handlers = Handlers(lambda said: said)
    async with listening(handlers, edge_limits=limits()) as (listener, connect):
        reader, writer = await connect(limit=1 << 10)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        whole = 32 << 20  # more than the kernel and the reader hold: it stops by itself
        writer.write(bytes(whole))
        await until(lambda: listener.lobby.counts.left_unread > 0, "it is left unread")
        taken = len(handlers.made[0].data)
        assert taken < whole // 2
        assert await reader.readexactly(whole) == bytes(whole)
        assert len(handlers.made[0].data) == 5 + whole
