"""MQTTS on real sockets: who is believed, who is not and why, and certificates that change."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from clustor.runtime.pki.identity import utc_now
from quantum.edge.errors import CertificatesUnusable
from quantum.edge.listener_tls import TlsListener
from quantum.edge.lobby import Lobby
from quantum.edge.tls_development import (
    ClientFiles,
    client_identity,
    issue_client,
    pki_directory,
    prepare_server,
)
from quantum.edge.websocket import over_websocket
from tests.quantum.edge.recording import HOST, Clients, Handlers, limits, rest_of


def tenant_of(server_name: str | None) -> str | None:
    return {"acme.mqtt.example": "acme", "localhost": "dev", None: "dev"}.get(server_name)


@asynccontextmanager
async def serving(
    data: Path,
    handlers: Handlers,
    *,
    websocket: bool = False,
    close_seconds: float = 30.0,
    own_records: bool = False,
) -> AsyncIterator[tuple[TlsListener, Clients]]:
    lobby = Lobby(limits(close_seconds=close_seconds))
    listener = TlsListener(
        "mqtts",
        lobby,
        over_websocket({"mqtt": handlers}) if websocket else handlers,
        certificates=prepare_server(data, utc_now(), own_records=own_records),
        tenant_of=tenant_of,
    )
    await listener.start(HOST, 0)
    clients = Clients(listener)
    try:
        yield listener, clients
    finally:
        await clients.close()
        await listener.close()
        assert lobby.present == 0
        lobby.close()


def client_context(data: Path, client: ClientFiles | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=pki_directory(data) / "ca.pem")
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


async def refused(connect: Clients, context: ssl.SSLContext, name: str = "localhost") -> None:
    """Connect, and see the server end it; under TLS 1.3 that may come after our own handshake."""
    with suppress(ssl.SSLError, ConnectionError):
        reader, writer = await connect(ssl=context, server_hostname=name)
        writer.write(b"hello")
        assert await rest_of(reader) == b""


async def test_a_client_is_whom_its_certificate_names(tmp_path: Path) -> None:
    handlers = Handlers()
    client = issue_client(tmp_path, "lamp-7", utc_now())
    async with serving(tmp_path, handlers) as (_, connect):
        reader, writer = await connect(
            ssl=client_context(tmp_path, client), server_hostname="localhost"
        )
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        peer = handlers.made[0].peer
        assert peer is not None
        assert peer.transport == "tls"
        assert peer.identity == client_identity("lamp-7")
        assert peer.server_name == "localhost"
        assert peer.tenant == "dev"
        assert peer.not_after_ms == int(client.not_after.timestamp() * 1000)


async def test_the_server_name_says_whose_client_it_is(tmp_path: Path) -> None:
    handlers = Handlers()
    context = client_context(tmp_path, issue_client(tmp_path, "lamp-7", utc_now()))
    context.check_hostname = False
    async with serving(tmp_path, handlers) as (_, connect):
        for name in ("acme.mqtt.example", "localhost"):
            reader, writer = await connect(ssl=context, server_hostname=name)
            writer.write(b"a")
            await reader.readexactly(1)
    assert [handler.peer and handler.peer.tenant for handler in handlers.made] == ["acme", "dev"]


async def test_much_travels_whole_and_the_end_is_told(tmp_path: Path) -> None:
    sent = bytes(range(256)) * 20_000
    handlers = Handlers(lambda data: data)
    context = client_context(tmp_path, issue_client(tmp_path, "a", utc_now()))
    async with serving(tmp_path, handlers) as (_, connect):
        reader, writer = await connect(ssl=context, server_hostname="localhost")
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        wire = handlers.made[0].wire
        assert wire is not None
        wire.write(b"goodbye")
        wire.close()
        assert await reader.read(-1) == b"goodbye"  # raises where the TLS end is missing


async def test_who_leaves_politely_is_gone_at_once(tmp_path: Path) -> None:
    handlers = Handlers()
    context = client_context(tmp_path, issue_client(tmp_path, "a", utc_now()))
    async with serving(tmp_path, handlers) as (_, connect):
        reader, writer = await connect(ssl=context, server_hostname="localhost")
        writer.write(b"a")
        await reader.readexactly(1)
        writer.close()
        await handlers.made[0].ended.wait()


def stranger(tmp_path: Path) -> ClientFiles:
    return issue_client(tmp_path / "elsewhere", "stranger", utc_now())


def expired(tmp_path: Path) -> ClientFiles:
    then = utc_now() - timedelta(days=2)
    prepare_server(tmp_path, then)
    return issue_client(tmp_path, "late", then, lifetime=timedelta(days=1))


def of_tomorrow(tmp_path: Path) -> ClientFiles:
    prepare_server(tmp_path, utc_now())
    return issue_client(tmp_path, "early", utc_now() + timedelta(days=1))


def a_server(tmp_path: Path) -> ClientFiles:
    prepare_server(tmp_path, utc_now())
    pki = pki_directory(tmp_path)
    return ClientFiles(pki / "server.pem", pki / "server.key", pki / "ca.pem", "", utc_now())


def nobody(_tmp_path: Path) -> None:
    return None


REFUSED = {
    "no certificate": (nobody, "showed no certificate"),
    "another authority's": (stranger, "unknown authority"),
    "expired": (expired, "out of its time (tls=certificate has expired)"),
    "not yet valid": (of_tomorrow, "out of its time (tls=certificate is not yet valid)"),
    "a server's certificate": (a_server, "unsuitable certificate purpose"),
}


@pytest.mark.parametrize(("make", "says"), REFUSED.values(), ids=REFUSED.keys())
async def test_who_is_not_believed_is_refused_in_one_line(
    make: object, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(make)
    handlers = Handlers()
    client = make(tmp_path)
    with caplog.at_level(logging.WARNING, "quantum.edge"):
        async with serving(tmp_path, handlers) as (listener, connect):
            await refused(connect, client_context(tmp_path, client))
            assert listener.lobby.counts.refused == 1
    assert handlers.made == []
    (record,) = caplog.records
    assert says in record.getMessage()
    assert record.getMessage().startswith(f"refused {HOST}:")
    assert "\n" not in record.getMessage()


async def test_a_certificate_without_a_name_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare_server(tmp_path, utc_now())
    client = issue_client(tmp_path, "x", utc_now())
    _write_unnamed(pki_directory(tmp_path), client, utc_now())
    handlers = Handlers()
    with caplog.at_level(logging.WARNING, "quantum.edge"):
        async with serving(tmp_path, handlers) as (_, connect):
            await refused(connect, client_context(tmp_path, client))
    assert handlers.made == []
    assert "names nobody" in caplog.records[0].getMessage()


def _write_unnamed(pki: Path, client: ClientFiles, now: datetime) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    authority = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((pki / "ca.pem").read_bytes()).subject
    key = x509.load_pem_x509_certificate(client.certificate.read_bytes()).public_key()
    unnamed = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(7)
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(authority, hashes.SHA256())  # type: ignore[arg-type]
    )
    client.certificate.write_bytes(unnamed.public_bytes(serialization.Encoding.PEM))


async def test_a_name_of_no_tenant_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers()
    context = client_context(tmp_path, issue_client(tmp_path, "a", utc_now()))
    context.check_hostname = False
    with caplog.at_level(logging.WARNING, "quantum.edge"):
        async with serving(tmp_path, handlers) as (_, connect):
            with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
                await connect(ssl=context, server_hostname="other.example")
    assert "no tenant has this server name (server_name=other.example)" in caplog.text


@pytest.mark.parametrize(
    "said",
    [b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", b"\x16\x03\x01\xff\xff" + b"x" * 70_000],
)
async def test_what_is_no_tls_is_refused(said: bytes, tmp_path: Path) -> None:
    handlers = Handlers()
    async with serving(tmp_path, handlers) as (listener, connect):
        reader, writer = await connect()
        writer.write(said)
        await rest_of(reader)
        assert listener.lobby.counts.refused == 1
    assert handlers.made == []


async def test_older_tls_is_refused(tmp_path: Path) -> None:
    context = client_context(tmp_path, issue_client(tmp_path, "a", utc_now()))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(tmp_path, Handlers()) as (_, connect):
        with pytest.raises(ssl.SSLError):
            await connect(ssl=context, server_hostname="localhost")


async def test_rubbish_inside_a_session_ends_that_session_alone(tmp_path: Path) -> None:
    handlers = Handlers()
    context = client_context(tmp_path, issue_client(tmp_path, "a", utc_now()))
    async with serving(tmp_path, handlers) as (_, connect):
        bystander = await connect(ssl=context, server_hostname="localhost")
        reader, writer = await connect(ssl=context, server_hostname="localhost")
        writer.write(b"a")
        await reader.readexactly(1)
        raw = writer.get_extra_info("socket").fileno()
        os.write(raw, b"\x17\x03\x03\x00\x20" + bytes(32))
        await handlers.made[-1].ended.wait()
        bystander[1].write(b"b")
        assert await bystander[0].readexactly(1) == b"B"


async def test_new_certificates_serve_new_connections_and_drop_nobody(tmp_path: Path) -> None:
    handlers = Handlers()
    context = client_context(tmp_path, issue_client(tmp_path, "a", utc_now()))
    async with serving(tmp_path, handlers) as (listener, connect):
        old = await connect(ssl=context, server_hostname="localhost")
        (pki_directory(tmp_path) / "server.pem").unlink()
        with pytest.raises(CertificatesUnusable, match=r"server\.pem"):
            listener.reload()
        prepare_server(tmp_path, utc_now())
        listener.reload()
        new = await connect(ssl=context, server_hostname="localhost")
        for reader, writer in (old, new):
            writer.write(b"a")
            assert await reader.readexactly(1) == b"A"
        shown = [
            writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
            for _, writer in (old, new)
        ]
        assert shown[0] != shown[1]


async def test_websocket_under_tls_keeps_the_identity(tmp_path: Path) -> None:
    from tests.quantum.edge.test_websocket import REQUEST, Client, binary

    handlers = Handlers()
    context = client_context(tmp_path, issue_client(tmp_path, "page", utc_now()))
    async with serving(tmp_path, handlers, websocket=True) as (_, connect):
        client = Client(*await connect(ssl=context, server_hostname="localhost"))
        await client.upgrade(REQUEST)
        client.writer.write(binary(b"hello"))
        assert await client.frame() == (0x82, b"HELLO")
        peer = handlers.made[0].peer
        assert peer is not None
        assert (peer.transport, peer.identity) == ("wss", client_identity("page"))


def test_the_server_certificate_is_renewed_before_its_end(tmp_path: Path) -> None:
    prepare_server(tmp_path, utc_now())
    certificate = pki_directory(tmp_path) / "server.pem"
    first = certificate.read_bytes()
    prepare_server(tmp_path, utc_now() + timedelta(days=19))
    assert certificate.read_bytes() == first
    prepare_server(tmp_path, utc_now() + timedelta(days=21))
    assert certificate.read_bytes() != first


@pytest.mark.parametrize("name", ["", "a/b", "../x", "-a", "a" * 65, "a b"])
def test_a_clients_name_is_a_plain_word(name: str, tmp_path: Path) -> None:
    with pytest.raises(CertificatesUnusable, match="letters, digits"):
        issue_client(tmp_path, name, utc_now())
    assert not any(tmp_path.iterdir())


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    client = issue_client(tmp_path, "a", utc_now())
    prepare_server(tmp_path, utc_now())
    keys = [client.key, *pki_directory(tmp_path).glob("*.key")]
    assert len(keys) == 3
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}


async def test_the_handshake_may_come_byte_by_byte(tmp_path: Path) -> None:
    handlers = Handlers()
    context = client_context(tmp_path, issue_client(tmp_path, "a", utc_now()))
    async with serving(tmp_path, handlers) as (_, connect):
        reader, writer = await connect()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")

        async def drip() -> None:
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await drip()
                incoming.write(await reader.read(65_536))
        tls.write(b"hello")
        await drip()
        incoming.write(await reader.read(65_536))
        assert tls.read() == b"HELLO"


@pytest.mark.parametrize(
    ("suites", "agreed"),
    [
        ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        ("TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        ("TLS_CHACHA20_POLY1305_SHA256", None),
    ],
)
@pytest.mark.skipif(shutil.which("openssl") is None, reason="Python's clients choose no suites")
async def test_two_suites_are_agreed_on_and_no_other(
    tmp_path: Path, suites: str, agreed: str | None
) -> None:
    """Quantumqtt §9.2."""
    client = issue_client(tmp_path, "lamp-7", utc_now())
    async with serving(tmp_path, Handlers()) as (listener, _):
        asking = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", f"{HOST}:{listener.port}"),
            *("-servername", "localhost", "-ciphersuites", suites),
            *("-cert", client.certificate, "-key", client.key),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert asking.stdin is not None and asking.stdout is not None
        asking.stdin.write(b"hello")
        told = b""
        while b"HELLO" not in told and (more := await asking.stdout.read(4096)):
            told += more
        with suppress(ProcessLookupError):
            asking.kill()
        await asking.wait()
    assert (b"HELLO" in told) == (agreed is not None)
    assert agreed is None or f"Cipher is {agreed}".encode() in told
