"""The API on a real admin port: TLS, certificates, bounds, and the pages beside it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from clustor.control import AuditRecord, scan
from clustor.runtime.admin import server as admin
from clustor.runtime.admin.http import BODY_BYTES_MAX, Request, Response
from clustor.runtime.admin.server import AdminServer
from clustor.runtime.admin.trust import AdminTrust
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    Issued,
    NodeId,
    cluster_id,
    create_authority,
    issue_node,
    utc_now,
)
from quantum.admin import AdminPages, ErrorBody
from tests.clustor.control.plane import OBSERVER, OPERATOR, STRANGER, settled_plane
from tests.clustor.runtime.test_transport import free_address
from tests.quantum.admin.certificates import authority, der, issue, serial
from tests.quantum.admin.host import Host
from tests.quantum.admin.serving import served


class Place:
    """An admin port under TLS, and clients of it."""

    def __init__(
        self,
        address: Address,
        pages: AdminPages,
        host: Host,
        directory: Path,
        door: AdminTrust,
    ) -> None:
        self.address = address
        self.door = door
        self.pages = pages
        self.host = host
        self._directory = directory

    def context(self, issued: Issued | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self._directory / AUTHORITY_FILE))
        context.check_hostname = False
        if issued is not None:
            file = self._directory / f"{serial(der(issued))}.pem"
            file.write_bytes(issued.certificate_pem + issued.key_pem)
            context.load_cert_chain(file)
        return context

    def ask(
        self, method: str, target: str, body: object = None, *, by: Issued | None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPSConnection(
            self.address.host, self.address.port, context=self.context(by), timeout=90
        )
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, target, content, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    issue_node(authority(), NodeId(1), tmp_path, utc_now())
    host = Host(settled_plane())
    doors: list[AdminTrust] = []

    def door(server: AdminServer) -> ssl.SSLContext:
        doors.append(AdminTrust(tmp_path, server, None))
        return doors[0].context

    with served(host, door=door) as (address, pages):
        yield Place(address, pages, host, tmp_path, doors[0])


def test_who_calls_is_the_certificates_spiffe_uri(place: Place) -> None:
    code, told = place.ask("GET", "/v1/cluster/state", by=issue(OPERATOR))
    assert (code, told["access"]["identity"]) == (200, OPERATOR)
    assert told["access"] | {"message": ""} == {
        "development": False,
        "identity": OPERATOR,
        "message": "",
        "roles": ["Operator"],
    }
    code, told = place.ask("POST", "/v1/nodes/4/drain", {"draining": True}, by=issue(OPERATOR))
    assert (code, told["result"]) == (200, {"state": "Draining"})
    newest = list(scan(place.host.plane.machine.kv, AuditRecord, "calls"))[-1]
    assert (newest.identity, newest.kind) == (OPERATOR, "DrainNode")


def test_who_shows_no_certificate_gets_a_refusal_from_every_page(place: Place) -> None:
    for target in ("/v1/nodes", "/openapi.json", "/status", "/kv", "/nothing"):
        code, told = place.ask("GET", target, by=None)
        assert (code, told["error"]) == (401, "NoCertificate"), target
    assert place.pages.api.refusals.total == 5


def test_pages_beside_the_api_ask_for_roles_too(place: Place) -> None:
    assert place.ask("GET", "/status", by=issue(OBSERVER)) == (200, {"node_id": 1})
    assert place.ask("GET", "/status", by=issue(STRANGER))[0] == 403
    assert place.ask("POST", "/reload", {}, by=issue(OBSERVER))[0] == 403
    assert place.ask("POST", "/reload", {}, by=issue(OPERATOR))[0] == 503  # repair mode: it passed
    assert place.ask("GET", "/kv", by=issue(OBSERVER))[0] == 403
    assert place.ask("GET", "/kv", by=issue(OPERATOR))[0] == 426


def test_a_revoked_certificate_ends_there(place: Place) -> None:
    good, bad = issue(OPERATOR), issue(OPERATOR)
    body = {"expected_version": 0, "roots": [], "revoked": [serial(der(bad))]}
    assert place.ask("PUT", "/v1/certificates/cluster", body, by=good)[0] == 200
    for target in ("/v1/nodes", "/status"):
        code, told = place.ask("GET", target, by=bad)
        assert (code, told["error"]) == (401, "CertificateRevoked"), target
        assert place.ask("GET", target, by=good)[0] == 200


def test_a_certificate_of_another_authority_gets_no_connection(
    place: Place, tmp_path: Path
) -> None:
    other = create_authority(tmp_path / "other", cluster_id("test"), utc_now())
    forged = issue(OPERATOR, by=other)
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        place.ask("GET", "/v1/nodes", by=forged)


def test_a_renewed_certificate_is_used_for_connections_to_come(
    place: Place, tmp_path: Path
) -> None:
    def shown() -> bytes | None:
        address = (place.address.host, place.address.port)
        with (
            socket.create_connection(address, timeout=90) as plain,
            place.context(None).wrap_socket(plain) as tls,
        ):
            return tls.getpeercert(binary_form=True)

    before = shown()
    (tmp_path / "node.key").rename(tmp_path / "old.key")
    issue_node(authority(), NodeId(1), tmp_path, utc_now())
    fresh_key = (tmp_path / "node.key").read_bytes()
    (tmp_path / "node.key").write_bytes((tmp_path / "old.key").read_bytes())
    place.door.look()  # one file of the pair was replaced, not yet the other
    assert shown() == before
    (tmp_path / "node.key").write_bytes(fresh_key)
    place.door.look()
    assert shown() not in (None, before)
    assert place.ask("GET", "/v1/nodes", by=issue(OPERATOR))[0] == 200


def test_plaintext_is_not_understood(place: Place) -> None:
    with socket.create_connection((place.address.host, place.address.port), timeout=90) as raw:
        raw.sendall(b"GET /v1/nodes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            answer = raw.recv(1024)
        except ConnectionError:
            answer = b""
    assert b"HTTP" not in answer


@pytest.fixture
def plain() -> Iterator[Address]:
    with served(Host(settled_plane()), development=OPERATOR) as (address, _):
        yield address


def raw(address: Address, request: bytes) -> tuple[int, bytes]:
    with socket.create_connection((address.host, address.port), timeout=90) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    return int(answer.split(b" ", 2)[1]), answer


HEAD = b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_body_may_have_a_mebibyte_and_no_more(plain: Address) -> None:
    roots = json.dumps({"expected_version": 0, "roots": ["x" * 200_000]}).encode()
    padded = roots + b" " * (BODY_BYTES_MAX - len(roots))
    target = b"PUT /v1/tenants/a/trust"
    length = b"Content-Length: %d\r\n\r\n"
    assert raw(plain, target + HEAD + length % len(padded) + padded)[0] == 200
    code, answer = raw(plain, target + HEAD + length % (BODY_BYTES_MAX + 1))
    assert (code, b"too large" in answer) == (413, True)


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    {
        "more than the body": (b"PUT /v1/roles" + HEAD + b"Content-Length: 2\r\n\r\n{}{}", 400),
        "no length": (b"PUT /v1/roles" + HEAD + b"\r\n", 411),
        "another type": (
            b"PUT /v1/roles HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
            b"Content-Length: 2\r\n\r\n{}",
            415,
        ),
        "a method of none": (b"TRACE /v1/roles HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        "development, by the wrong name": (
            b"GET /v1/roles HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            421,
        ),
    }.values(),
)
def test_what_the_port_refuses(plain: Address, request_bytes: bytes, code: int) -> None:
    found, answer = raw(plain, request_bytes)
    assert found == code
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert set(body) == set(ErrorBody.__struct_fields__), "all refusals have one shape"
    assert body["next"]


def test_development_says_so_in_a_header(plain: Address) -> None:
    code, answer = raw(plain, b"GET /v1/nodes HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert code == 200
    assert b"\r\nQuantum-Development: plaintext on loopback; every caller is Operator\r\n" in answer
    assert raw(plain, b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 200


def test_a_bug_of_ours_is_answered_through_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(settled_plane())
    with served(host, development=OPERATOR) as (address, _):
        monkeypatch.setattr(host, "state", None)
        code, answer = raw(address, b"GET /v1/nodes HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (code, b"OurFault" in answer) == (500, True)


class Verbose:
    """An API whose every answer is too large for the buffers of a connection."""

    def take(self, _request: Request) -> Coroutine[None, None, Response | None]:
        return self._answer()

    async def _answer(self) -> Response | None:
        return Response(200, b"x" * (32 << 20))


async def test_who_does_not_take_an_answer_does_not_hold_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "TAKING_SECONDS_MAX", 0.2)
    server, address = AdminServer(dict, None), free_address()
    server.api = Verbose()
    await server.listen(address)
    with socket.create_connection((address.host, address.port)) as lazy:
        lazy.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await wait_until(lambda: len(server._connections) == 1)
        await wait_until(lambda: not server._connections)
    server.close()


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0.005)
