"""The admin port: small, strict, bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from clustor import wire as w
from clustor.runtime.admin.commands import AdminCommands, Answer
from clustor.runtime.admin.http import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    BadRequest,
    Head,
    HttpRequestReader,
    check_origin,
)
from clustor.runtime.admin.server import AdminServer
from clustor.runtime.containment import contained
from clustor.runtime.errors import PortTaken
from clustor.runtime.peers.transport import Address
from tests.clustor.runtime.test_transport import free_address

HOST = b"\r\nHost: 127.0.0.1"
JSON = b"\r\nContent-Type: application/json"


def parse_head(data: bytes) -> Head:
    """Read a head as it would come, whole, and hold it to what a plaintext port answers."""
    reader = HttpRequestReader()
    reader.receive(data + b"\r\n\r\n")
    assert reader.head is not None
    check_origin(reader.head, "127.0.0.1", encrypted=False)
    return reader.head


def test_a_head_is_a_path_and_headers() -> None:
    head = parse_head(b"GET /kv HTTP/1.1\r\nHost: 127.0.0.1:1\r\nUpgrade:clustor-kv ")
    assert head == Head("/kv", {"host": "127.0.0.1:1", "upgrade": "clustor-kv"})


@pytest.mark.parametrize(
    ("head", "code"),
    {
        "another method": (b"TRACE /status HTTP/1.1" + HOST, 405),
        "a put without a length": (b"PUT /v1/config HTTP/1.1" + HOST + JSON, 411),
        "a delete with a body": (
            b"DELETE /v1/nodes/1 HTTP/1.1" + HOST + JSON + b"\r\nContent-Length: 2",
            400,
        ),
        "a post without a length": (b"POST /reload HTTP/1.1" + HOST + JSON, 411),
        "a post of a strange length": (
            b"POST /reload HTTP/1.1" + HOST + JSON + b"\r\nContent-Length: +2",
            400,
        ),
        "a post that is too long": (
            b"POST /reload HTTP/1.1"
            + HOST
            + JSON
            + b"\r\nContent-Length: %d" % (BODY_BYTES_MAX + 1),
            413,
        ),
        "a post of a length beyond all": (
            b"POST /reload HTTP/1.1" + HOST + JSON + b"\r\nContent-Length: " + b"9" * 5000,
            400,
        ),
        "a post that a web page could send": (
            b"POST /reload HTTP/1.1" + HOST + b"\r\nContent-Length: 2",
            415,
        ),
        "a post in chunks": (
            b"POST /reload HTTP/1.1" + HOST + JSON + b"\r\nTransfer-Encoding: chunked",
            400,
        ),
        "another version": (b"GET /status HTTP/1.0" + HOST, 505),
        "a host for a path": (b"GET //[ HTTP/1.1" + HOST, 400),
        "no path": (b"GET status HTTP/1.1" + HOST, 400),
        "too few words": (b"GET /status" + HOST, 400),
        "no host": (b"GET /status HTTP/1.1", 400),
        "host twice": (b"GET /status HTTP/1.1" + HOST + HOST, 400),
        "a body": (b"GET /status HTTP/1.1" + HOST + b"\r\nContent-Length: 5", 400),
        "chunks": (b"GET /status HTTP/1.1" + HOST + b"\r\nTransfer-Encoding: chunked", 400),
        "a header without a colon": (b"GET /status HTTP/1.1" + HOST + b"\r\nnonsense", 400),
        "a folded header": (b"GET /status HTTP/1.1" + HOST + b"\r\n folded: x", 421),
        "not ASCII": (b"GET /\xff HTTP/1.1" + HOST, 400),
        "a tab in the path": (b"GET /\t/[ HTTP/1.1" + HOST, 400),
        "a header of other letters": (b"GET /status HTTP/1.1" + HOST + b"\r\nx: \xe9", 400),
        "a name that points here": (b"GET /status HTTP/1.1\r\nHost: evil.example:80", 421),
        "an address elsewhere": (b"GET /status HTTP/1.1\r\nHost: 10.0.0.1", 421),
        "a host that is none": (b"GET /status HTTP/1.1\r\nHost: [", 421),
        "a page of another origin": (
            b"GET /status HTTP/1.1" + HOST + b"\r\nOrigin: https://evil.example",
            403,
        ),
        "a page without an origin": (b"GET /status HTTP/1.1" + HOST + b"\r\nOrigin: null", 403),
    }.values(),
)
def test_heads_that_are_not_answered(head: bytes, code: int) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_head(head)
    assert refused.value.code == code


def test_a_post_says_how_long_its_body_is() -> None:
    head = parse_head(b"POST /reload HTTP/1.1" + HOST + JSON + b"\r\nContent-Length: 12")
    assert (head.method, head.path, head.body_bytes) == ("POST", "/reload", 12)


class Echo(AdminCommands):
    """Commands that only say what was ordered."""

    def __init__(self) -> None:
        pass

    def carry_out(self, path: str, body: bytes) -> Answer:
        return 202, {"path": path, "body": body.decode()}


@asynccontextmanager
async def server(commands: AdminCommands | None = None) -> AsyncIterator[Address]:
    admin = AdminServer(lambda: {"node_id": 1}, None, commands)
    address = free_address()
    await admin.listen(address)
    try:
        yield address
    finally:
        admin.close()


async def ask(address: Address, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 120)
    finally:
        writer.close()


async def test_status_is_json_and_the_connection_ends() -> None:
    async with server() as address:
        answer = await ask(address, b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert json.loads(body) == {"node_id": 1}


async def test_the_wide_int_registry_is_exposed() -> None:
    """§8.2: nodes MUST expose it."""
    async with server() as address:
        answer = await ask(
            address, b"GET /.well-known/wide-int-registry HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert answer.partition(b"\r\n\r\n")[2] == w.canonical(w.wide_int_registry())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    {
        "no such page": (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        "not a request": (b"\r\n\r\n", b"400"),
        "kv without upgrade": (b"GET /kv HTTP/1.1\r\nHost: localhost\r\n\r\n", b"426"),
        "kv in repair mode": (
            b"GET /kv HTTP/1.1" + HOST + b"\r\nConnection: Upgrade\r\nUpgrade: clustor-kv\r\n\r\n",
            b"503",
        ),
        "a command in repair mode": (
            b"POST /reload HTTP/1.1" + HOST + JSON + b"\r\nContent-Length: 2\r\n\r\n{}",
            b"503",
        ),
        "a method that no page has": (
            b"DELETE /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"405",
        ),
        "more than the body": (
            b"POST /reload HTTP/1.1" + HOST + JSON + b"\r\nContent-Length: 2\r\n\r\n{}{}",
            b"400",
        ),
        "an endless head": (b"GET /" + b"a" * (2 * HEAD_BYTES_MAX), b"431"),
    }.values(),
)
async def test_other_requests_get_their_code(request_bytes: bytes, status: bytes) -> None:
    async with server() as address:
        answer = await ask(address, request_bytes)
        assert answer.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("cut", [20, 60, 95, 104, 107])
async def test_a_command_comes_in_parts_and_is_carried_out_whole(cut: int) -> None:
    order = (
        b"POST /reload HTTP/1.1"
        + HOST
        + JSON
        + b"\r\nContent-Length: 14\r\n\r\n"
        + b'{"node_id": 1}'
    )
    async with server(Echo()) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(order[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(order[cut:])
            answer = await asyncio.wait_for(reader.read(), 120)
        finally:
            writer.close()
        assert answer.startswith(b"HTTP/1.1 202 ")
        body = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert body == {"path": "/reload", "body": '{"node_id": 1}'}


async def test_a_command_ends_where_it_said() -> None:
    order = b"POST /reload HTTP/1.1" + HOST + JSON + b"\r\nContent-Length: 2\r\n\r\n{}{}"
    async with server(Echo()) as address:
        assert (await ask(address, order)).startswith(b"HTTP/1.1 400 ")


class Slipping:
    """Calls of which each falls over something on the way."""

    async def post_later(self) -> Answer:
        raise ZeroDivisionError("with a secret")

    def post(self, _target: str, _body: bytes) -> Awaitable[Answer]:
        return self.post_later()


async def test_an_answer_that_falls_over_something_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contained, "raising", False)
    monkeypatch.setattr(contained, "counts", {})
    admin = AdminServer(dict, None, Echo())
    admin.calls = Slipping()
    address = free_address()
    await admin.listen(address)
    try:
        order = b"POST /control/call HTTP/1.1" + HOST + JSON + b"\r\nContent-Length: 2\r\n\r\n{}"
        with contextlib.suppress(ConnectionResetError):
            assert await ask(address, order) == b""
        assert contained.counts == {"admin": 1}
        assert (await ask(address, b"GET /status HTTP/1.1" + HOST + b"\r\n\r\n")).startswith(
            b"HTTP/1.1 200"
        )
    finally:
        admin.close()


async def test_a_taken_port_is_one_typed_error() -> None:
    async with server() as address:
        with pytest.raises(PortTaken):
            await AdminServer(dict, None).listen(address)
