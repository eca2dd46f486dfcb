"""A revoked client: refused at the handshake, counted, and told; its neighbours are not."""

from __future__ import annotations

from pathlib import Path

from quantum.edge.errors import ClientCertificateRevoked
from quantum.edge.tls_development import issue_client, renew_server, revoke_client
from tests.quantum.edge.recording import Handlers
from tests.quantum.edge.test_tls import NOW, client_context, refused, serving


async def test_a_revoked_client_is_refused_counted_and_told(tmp_path: Path) -> None:
    handlers = Handlers()
    lamp, door = issue_client(tmp_path, "lamp", NOW), issue_client(tmp_path, "door", NOW)
    async with serving(tmp_path, handlers) as (listener, connect):
        told: list[object] = []
        listener.lobby.on_refusal = lambda _address, why: told.append(why)
        context = client_context(tmp_path, lamp)
        reader, writer = await connect(ssl=context, server_hostname="localhost")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        revoke_client(tmp_path, lamp.certificate, NOW)
        listener.reload()
        await refused(connect, context)
        assert listener.lobby.counts.revoked == 1
        assert isinstance(told[0], ClientCertificateRevoked)
        writer.write(b"again")  # who was here stays
        assert await reader.readexactly(5) == b"AGAIN"
        _, other = await connect(ssl=client_context(tmp_path, door), server_hostname="localhost")
        other.write(b"hello")
        assert listener.lobby.counts.revoked == 1


async def test_a_renewed_listener_keeps_its_names_and_its_list(tmp_path: Path) -> None:
    lamp = issue_client(tmp_path, "lamp", NOW)
    async with serving(tmp_path, Handlers()) as (listener, connect):
        revoke_client(tmp_path, lamp.certificate, NOW)
        renew_server(tmp_path, NOW)
        listener.reload()
        await refused(connect, client_context(tmp_path, lamp))
        again = issue_client(tmp_path, "lamp", NOW)
        reader, writer = await connect(
            ssl=client_context(tmp_path, again), server_hostname="localhost"
        )
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
