"""Clients that are believed no more: shown out, refused when they come again, told of.

Their neighbours notice nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from clustor.runtime.pki.authority_change import begin_rollover, finish_rollover, switch_rollover
from clustor.runtime.pki.certificate_files import load_certificate
from clustor.runtime.pki.identity import utc_now
from quantum.edge.errors import (
    CertificatesUnusable,
    ClientAuthorityGone,
    ClientCertificateRevoked,
    ClientUntrusted,
)
from quantum.edge.tls import TenantTrust
from quantum.edge.tls_development import (
    TRUST_DOMAIN,
    issue_client,
    pki_directory,
    renew_server,
    revoke_client,
)
from tests.quantum.edge.recording import Clients, Handlers
from tests.quantum.edge.test_tls import client_context, refused, serving

MQTT = TRUST_DOMAIN
ACME = "acme.mqtt.example"


async def test_a_revoked_client_is_refused_counted_and_told(tmp_path: Path) -> None:
    handlers = Handlers()
    lamp, door = (
        issue_client(tmp_path, "lamp", utc_now()),
        issue_client(tmp_path, "door", utc_now()),
    )
    async with serving(tmp_path, handlers) as (listener, connect):
        told: list[object] = []
        listener.lobby.on_refusal = lambda _address, why: told.append(why)
        context = client_context(tmp_path, lamp)
        reader, writer = await connect(ssl=context, server_hostname="localhost")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        revoke_client(tmp_path, lamp.certificate, utc_now())
        listener.reload()
        await refused(connect, context)
        assert listener.lobby.counts.revoked == 2
        assert [type(each) for each in told] == [ClientCertificateRevoked] * 2
        assert listener.lobby.counts.expelled == 1
        assert await rest(reader) == b"goodbye"
        assert handlers.made[0].events[2:] == ["expelled: its certificate was revoked", "lost"]
        quiet, other = await connect(
            ssl=client_context(tmp_path, door), server_hostname="localhost"
        )
        other.write(b"hello")
        assert await quiet.readexactly(5) == b"HELLO"
        assert listener.lobby.counts.revoked == 2


async def test_a_renewed_listener_keeps_its_names_and_its_list(tmp_path: Path) -> None:
    lamp = issue_client(tmp_path, "lamp", utc_now())
    async with serving(tmp_path, Handlers()) as (listener, connect):
        revoke_client(tmp_path, lamp.certificate, utc_now())
        renew_server(tmp_path, utc_now())
        listener.reload()
        await refused(connect, client_context(tmp_path, lamp))
        again = issue_client(tmp_path, "lamp", utc_now())
        reader, writer = await connect(
            ssl=client_context(tmp_path, again), server_hostname="localhost"
        )
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return what comes before the end, which does not let itself be waited for."""
    async with asyncio.timeout(180):
        return await reader.read()


async def spoken(
    connect: Clients, context: ssl.SSLContext, name: str = "localhost"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and be answered."""
    reader, writer = await connect(ssl=context, server_hostname=name)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"HELLO"
    return reader, writer


async def test_what_a_client_says_while_it_is_shown_out_is_not_heard(tmp_path: Path) -> None:
    handlers = Handlers()
    lamp = issue_client(tmp_path, "lamp", utc_now())
    async with serving(tmp_path, handlers) as (listener, connect):
        reader, writer = await spoken(connect, client_context(tmp_path, lamp))
        handlers.made[0].says_goodbye = False  # it takes its time, as one on another node does
        revoke_client(tmp_path, lamp.certificate, utc_now())
        listener.reload()
        writer.write(b"one more thing")
        wire = handlers.made[0].wire
        assert wire is not None
        wire.write(b"late")  # what was on its way; the time to leave goes on
        assert await reader.readexactly(4) == b"late"
        assert bytes(handlers.made[0].data) == b"hello"
        listener.judge_again()
        assert listener.lobby.counts.expelled == 1
        wire.close()
        assert await rest(reader) == b""


async def test_who_does_not_go_by_himself_is_cut(tmp_path: Path) -> None:
    handlers = Handlers()
    lamp = issue_client(tmp_path, "lamp", utc_now())
    async with serving(tmp_path, handlers, close_seconds=0.05) as (listener, connect):
        reader, _ = await spoken(connect, client_context(tmp_path, lamp))
        handlers.made[0].says_goodbye = False
        revoke_client(tmp_path, lamp.certificate, utc_now())
        listener.reload()
        with suppress(ConnectionError):
            assert await rest(reader) == b""
        await handlers.made[0].ended.wait()


async def test_a_client_goes_when_its_certificate_ends(tmp_path: Path) -> None:
    """Whoever is too slow to come before it ends gets one that lives longer."""
    for seconds in (2, 10, 60):
        if await _goes_when_it_ends(tmp_path, seconds):
            return
    raise AssertionError("nobody came in time")


async def _goes_when_it_ends(tmp_path: Path, seconds: int) -> bool:
    handlers = Handlers()
    lifetime = timedelta(seconds=seconds)
    later = issue_client(tmp_path, f"later-{seconds}", utc_now())
    soon = issue_client(tmp_path, f"soon-{seconds}", utc_now(), lifetime=lifetime)
    async with serving(tmp_path, handlers) as (listener, connect):
        try:
            reader, _ = await spoken(connect, client_context(tmp_path, soon))
        except (OSError, asyncio.IncompleteReadError):
            assert utc_now() >= soon.not_after
            return False
        quiet, writer = await spoken(connect, client_context(tmp_path, later))
        listener.look()
        expelled = listener.lobby.counts.expelled
        if utc_now() >= soon.not_after:
            return False
        assert expelled == 0
        while listener.lobby.counts.expelled == 0:
            assert utc_now() < soon.not_after + timedelta(seconds=180)
            await asyncio.sleep(0.02)
            listener.look()
        assert utc_now() >= soon.not_after
        assert await rest(reader) == b"goodbye"
        writer.write(b"still here")
        assert await quiet.readexactly(10) == b"STILL HERE"
        return True


async def test_a_new_authority_is_believed_beside_the_old_and_then_alone(tmp_path: Path) -> None:
    handlers = Handlers()
    before = issue_client(tmp_path, "old", utc_now())
    old = client_context(tmp_path, before)
    async with serving(tmp_path, handlers) as (listener, connect):
        pki = pki_directory(tmp_path)
        told: list[object] = []
        listener.lobby.on_refusal = lambda _address, why: told.append(why)
        revoke_client(tmp_path, issue_client(tmp_path, "gone", utc_now()).certificate, utc_now())
        listener.reload()  # lists are asked from here on
        first = await spoken(connect, old)
        begin_rollover(pki, MQTT, utc_now())
        listener.reload()
        old_still = await spoken(connect, old)
        switch_rollover(pki, MQTT)
        renew_server(tmp_path, utc_now())
        listener.reload()
        new = client_context(tmp_path, issue_client(tmp_path, "new", utc_now()))
        by_new = await spoken(connect, new)
        assert "expelled" not in str([each.events for each in handlers.made])
        await spoken(connect, client_context(tmp_path, issue_client(tmp_path, "too", utc_now())))
        finish_rollover(pki, MQTT)
        listener.reload()
        for reader, _ in (first, old_still):
            assert await rest(reader) == b"goodbye"
        assert {type(each) for each in told} == {ClientAuthorityGone}
        await refused(connect, client_context(tmp_path, before))
        assert isinstance(told[-1], ClientUntrusted)
        reader, writer = by_new
        writer.write(b"me")
        assert await reader.readexactly(2) == b"ME"
        await spoken(connect, new)


async def test_a_tenants_own_roots_count_below_its_own_names_alone(tmp_path: Path) -> None:
    handlers = Handlers()
    common = client_context(tmp_path, issue_client(tmp_path, "common", utc_now()))
    theirs = issue_client(tmp_path / "theirs", "device", utc_now())
    own = client_context(tmp_path, theirs)
    for context in (common, own):
        context.check_hostname = False
    async with serving(tmp_path, handlers) as (listener, connect):
        told: list[object] = []
        listener.lobby.on_refusal = lambda _address, why: told.append(why)
        revoke_client(tmp_path, issue_client(tmp_path, "gone", utc_now()).certificate, utc_now())
        listener.reload()  # a list that their authority has no part in
        before = await spoken(connect, common, ACME)
        root = (pki_directory(tmp_path / "theirs") / "ca.pem").read_text()
        listener.trust_tenant("acme", TenantTrust((root,)))
        assert await rest(before[0]) == b"goodbye"  # that authority is not acme's any more
        reader, _ = await spoken(connect, own, ACME)
        peer = handlers.made[-1].peer
        assert peer is not None and (peer.tenant, peer.server_name) == ("acme", ACME)
        await spoken(connect, common)
        await refused(connect, own)
        await refused(connect, common, ACME)
        assert [type(each) for each in told] == [ClientAuthorityGone, *[ClientUntrusted] * 2]
        listener.reload()
        await spoken(connect, own, ACME)
        serial = load_certificate(theirs.certificate).serial_number
        listener.trust_tenant("acme", TenantTrust((root,), frozenset({serial})))
        assert await rest(reader) == b"goodbye"
        await refused(connect, own, ACME)
        assert isinstance(told[-1], ClientCertificateRevoked)
        listener.trust_tenant("acme", None)
        await spoken(connect, common, ACME)


async def test_roots_that_cannot_be_read_let_nobody_in(tmp_path: Path) -> None:
    """Who was believed before them need not be believed now; other tenants notice nothing."""
    context = client_context(tmp_path, issue_client(tmp_path, "a", utc_now()))
    context.check_hostname = False
    async with serving(tmp_path, Handlers()) as (listener, connect):
        before = await spoken(connect, context, ACME)
        other, writer = await spoken(connect, context)
        with pytest.raises(CertificatesUnusable):
            listener.trust_tenant("acme", TenantTrust(("-----BEGIN CERTIFICATE-----\nno\n",)))
        assert await rest(before[0]) == b"goodbye"
        await refused(connect, context, ACME)
        listener.reload()
        await refused(connect, context, ACME)
        await spoken(connect, context)
        writer.write(b"me")
        assert await other.readexactly(2) == b"ME"
        listener.trust_tenant("acme", None)
        await spoken(connect, context, ACME)


async def test_a_tenant_without_roots_may_revoke_by_number(tmp_path: Path) -> None:
    lamp = issue_client(tmp_path, "lamp", utc_now())
    door = client_context(tmp_path, issue_client(tmp_path, "door", utc_now()))
    async with serving(tmp_path, Handlers()) as (listener, connect):
        reader, _ = await spoken(connect, client_context(tmp_path, lamp))
        stays, writer = await spoken(connect, door)
        serial = load_certificate(lamp.certificate).serial_number
        listener.trust_tenant("dev", TenantTrust(revoked=frozenset({serial})))
        assert await rest(reader) == b"goodbye"
        await refused(connect, client_context(tmp_path, lamp))
        writer.write(b"a")
        assert await stays.readexactly(1) == b"A"
