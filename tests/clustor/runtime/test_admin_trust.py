"""The admin port: who is believed no more is shown out, and who need not go stays."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.runtime.admin.server import AdminServer
from clustor.runtime.admin.trust import ENDED, AdminTrust
from clustor.runtime.pki.authority_change import begin_rollover, finish_rollover, switch_rollover
from clustor.runtime.pki.certificate_files import replace_file
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    REVOCATION_FILE,
    DevelopmentAuthority,
    Issued,
    NodeId,
    cluster_id,
    create_authority,
    issue_certificate,
    issue_node,
    load_authority,
    utc_now,
)
from clustor.runtime.pki.revocation import revoke_certificate
from clustor.security import AuditEvent
from tests.clustor.runtime.test_transport import free_address

CLUSTER = cluster_id("test")
NODE = NodeId(1)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Noted:
    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def note(self, event: AuditEvent) -> bool:
        self.events.append(event)
        return True


class Place:
    """An admin port, its authority, and people with certificates."""

    def __init__(self, root: Path) -> None:
        self.root = root / "authority"
        self.pki = root / "node"
        issue_node(create_authority(self.root, CLUSTER, utc_now()), NODE, self.pki, utc_now())
        self.noted = Noted()
        self.server = AdminServer(lambda: {"node_id": 1}, None)
        self.door = AdminTrust(self.pki, self.server, self.noted)
        self.address = free_address()

    @property
    def authority(self) -> DevelopmentAuthority:
        return load_authority(self.root, CLUSTER)

    def publish(self) -> None:
        """Give the node what the authority's directory holds."""
        for name in (AUTHORITY_FILE, REVOCATION_FILE):
            if (self.root / name).exists():
                replace_file(self.pki / name, (self.root / name).read_bytes(), 0o644)
        self.door.look()

    def issue(self, name: str, lifetime: timedelta = timedelta(days=1)) -> Issued:
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"spiffe://test/{name}")]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        return issue_certificate(
            self.authority, name, names, usages, now=utc_now(), lifetime=lifetime
        )

    async def open(self, issued: Issued) -> Streams:
        """Connect, and begin a request without an end: the connection stays."""
        context = ssl.create_default_context(cafile=str(self.root / AUTHORITY_FILE))
        context.check_hostname = False
        file = self.root / "client.pem"
        file.write_bytes(issued.certificate_pem + issued.key_pem)
        context.load_cert_chain(file)
        reader, writer = await asyncio.open_connection(
            self.address.host, self.address.port, ssl=context
        )
        writer.write(b"GET /status HTTP/1.1\r\n")
        return reader, writer

    async def is_let_in(self, issued: Issued) -> bool:
        with suppress(ssl.SSLError, ConnectionError):
            return await self.answers(await self.open(issued))
        return False

    async def answers(self, streams: Streams) -> bool:
        reader, writer = streams
        with suppress(ssl.SSLError, ConnectionError):
            writer.write(b"Host: localhost\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer.startswith(b"HTTP/1.1 401 ")  # believed, but nothing is for everybody
        return False

    async def until_noted(self) -> None:
        """Look as the node does: a client's handshake is over before the server's is."""
        async with asyncio.timeout(180):
            while not self.noted.events:
                self.door.look()
                await asyncio.sleep(0.01)

    def revoke(self, issued: Issued) -> None:
        certificate = x509.load_pem_x509_certificate(issued.certificate_pem)
        revoke_certificate(self.authority, certificate, self.root / REVOCATION_FILE, utc_now())
        self.publish()


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[Place]:
    place = Place(root)
    await place.server.listen(place.address, place.door.context)
    try:
        yield place
    finally:
        place.server.close()


async def until_ended(streams: Streams) -> None:
    async with asyncio.timeout(180):
        with suppress(ConnectionError):
            assert await streams[0].read() == b""


async def test_a_revoked_caller_is_shown_out_and_not_let_in_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        bad, good = place.issue("bad"), place.issue("good")
        stays, goes = await place.open(good), await place.open(bad)
        place.revoke(bad)
        await place.until_noted()
        await until_ended(goes)
        assert [(event.what, event.outcome) for event in place.noted.events] == [(ENDED, "REVOKED")]
        assert not await place.is_let_in(bad)
        assert await place.answers(stays)
        assert await place.is_let_in(good)


async def test_two_authorities_are_believed_then_the_new_one_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        old = place.issue("old")
        place.revoke(place.issue("nobody"))  # lists are asked from here on
        begin_rollover(place.root, CLUSTER, utc_now())
        place.publish()
        stays = await place.open(old)
        switch_rollover(place.root, CLUSTER)
        issue_node(place.authority, NODE, place.pki, utc_now())
        place.publish()
        new = place.issue("new")
        by_new, by_old = await place.open(new), await place.open(old)
        assert await place.answers(stays)
        finish_rollover(place.root, CLUSTER)
        place.publish()
        await place.until_noted()
        await until_ended(by_old)
        assert [event.outcome for event in place.noted.events] == ["AUTHORITY"]
        assert not await place.is_let_in(old)
        assert await place.answers(by_new)
        assert await place.is_let_in(new)


async def test_a_caller_goes_when_its_certificate_ends(tmp_path: Path) -> None:
    """Whoever is too slow to come before it ends gets one that lives longer."""
    for seconds in (2, 10, 60):
        root = tmp_path / str(seconds)
        root.mkdir()
        async with serving(root) as place:
            if await goes_when_it_ends(place, timedelta(seconds=seconds)):
                return
    raise AssertionError("nobody came in time")


async def goes_when_it_ends(place: Place, lifetime: timedelta) -> bool:
    issued = place.issue("soon", lifetime)
    ends = x509.load_pem_x509_certificate(issued.certificate_pem).not_valid_after_utc
    with suppress(ssl.SSLError, ConnectionError):
        streams = await place.open(issued)
        while not place.server._connections and utc_now() < ends:
            await asyncio.sleep(0.01)
        place.door.look()
        if utc_now() >= ends:
            streams[1].close()
            await streams[1].wait_closed()
            return False
        assert not place.noted.events
        await place.until_noted()
        await until_ended(streams)
        assert [event.outcome for event in place.noted.events] == ["EXPIRED"]
        return True
    return False
