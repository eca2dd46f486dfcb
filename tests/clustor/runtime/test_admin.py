"""The admin port: small, strict, bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from clustor import wire as w
from clustor.runtime.admin import HEAD_BYTES_MAX, AdminServer, BadRequest, Head, parse_head
from clustor.runtime.errors import PortTaken
from clustor.runtime.transport import Address
from tests.clustor.runtime.test_transport import free_address

HOST = b"\r\nHost: x"


def test_a_head_is_a_path_and_headers() -> None:
    head = parse_head(b"GET /kv HTTP/1.1\r\nHost: a:1\r\nUpgrade:clustor-kv ")
    assert head == Head("/kv", {"host": "a:1", "upgrade": "clustor-kv"})


@pytest.mark.parametrize(
    ("head", "code"),
    {
        "another method": (b"POST /status HTTP/1.1" + HOST, 405),
        "another version": (b"GET /status HTTP/1.0" + HOST, 505),
        "no path": (b"GET status HTTP/1.1" + HOST, 400),
        "too few words": (b"GET /status" + HOST, 400),
        "no host": (b"GET /status HTTP/1.1", 400),
        "host twice": (b"GET /status HTTP/1.1" + HOST + HOST, 400),
        "a body": (b"GET /status HTTP/1.1" + HOST + b"\r\nContent-Length: 5", 400),
        "chunks": (b"GET /status HTTP/1.1" + HOST + b"\r\nTransfer-Encoding: chunked", 400),
        "a header without a colon": (b"GET /status HTTP/1.1" + HOST + b"\r\nnonsense", 400),
        "a folded header": (b"GET /status HTTP/1.1" + HOST + b"\r\n folded: x", 400),
        "not ASCII": (b"GET /\xff HTTP/1.1" + HOST, 400),
    }.values(),
)
def test_heads_that_are_not_answered(head: bytes, code: int) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_head(head)
    assert refused.value.code == code


@asynccontextmanager
async def server() -> AsyncIterator[Address]:
    admin = AdminServer(lambda: {"node_id": 1}, None)
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
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


async def test_status_is_json_and_the_connection_ends() -> None:
    async with server() as address:
        answer = await ask(address, b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        assert json.loads(body) == {"node_id": 1}


async def test_the_wide_int_registry_is_exposed() -> None:
    """§8.2: nodes MUST expose it."""
    async with server() as address:
        answer = await ask(
            address, b"GET /.well-known/wide-int-registry HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert answer.partition(b"\r\n\r\n")[2] == w.canonical(w.wide_int_registry())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    {
        "no such page": (b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        "not a request": (b"\r\n\r\n", b"400"),
        "kv without upgrade": (b"GET /kv HTTP/1.1\r\nHost: x\r\n\r\n", b"426"),
        "kv in repair mode": (
            b"GET /kv HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: clustor-kv\r\n\r\n",
            b"503",
        ),
        "an endless head": (b"GET /" + b"a" * (2 * HEAD_BYTES_MAX), b"431"),
    }.values(),
)
async def test_other_requests_get_their_code(request_bytes: bytes, status: bytes) -> None:
    async with server() as address:
        answer = await ask(address, request_bytes)
        assert answer.startswith(b"HTTP/1.1 " + status)


async def test_a_taken_port_is_one_typed_error() -> None:
    async with server() as address:
        with pytest.raises(PortTaken):
            await AdminServer(dict, None).listen(address)
