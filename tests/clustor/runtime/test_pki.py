"""Certificates: who may speak to whom, and why somebody may not."""

from __future__ import annotations

import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from clustor.runtime.errors import (
    CertificateUnusable,
    PeerCertificateExpired,
    PeerIsAnotherNode,
    PeerOfAnotherCluster,
    PeerRefused,
    PeerUntrusted,
    PeerWithoutIdentity,
)
from clustor.runtime.peers.tls import TlsPipe
from clustor.runtime.pki.identity import (
    ClusterId,
    DevelopmentAuthority,
    NodeId,
    PeerIdentity,
    check_peer,
    client_context,
    cluster_id,
    create_authority,
    identity_of,
    issue_node,
    load_authority,
    needs_certificate,
    own_identity,
    server_context,
)

CLUSTER = ClusterId("dev")


@pytest.fixture
def authority(tmp_path: Path) -> DevelopmentAuthority:
    return create_authority(tmp_path / "ca", CLUSTER, datetime.now(UTC))


def issued(authority: DevelopmentAuthority, tmp_path: Path, node: int, **options: object) -> Path:
    directory = tmp_path / f"{authority.cluster_id}-{node}-{len(options)}"
    issue_node(authority, NodeId(node), directory, datetime.now(UTC), **options)  # type: ignore[arg-type]  # a test's options
    return directory


def talk(client: TlsPipe, server: TlsPipe) -> None:
    """Carry bytes between both sides until neither has any; raises what either raises."""
    client.start()
    while True:
        to_server = client.take_outgoing()
        if to_server:
            server.receive(to_server)
        to_client = server.take_outgoing()
        if to_client:
            client.receive(to_client)
        if not to_server and not to_client:
            return


def pipes(client: Path, server: Path) -> tuple[TlsPipe, TlsPipe]:
    return (
        TlsPipe(client_context(client), server_side=False),
        TlsPipe(server_context(server), server_side=True),
    )


@pytest.mark.parametrize("network_bytes", [1_000, 16_400, 65_536, 1 << 20])
def test_pieces_arrive_as_what_they_are_together(
    authority: DevelopmentAuthority, tmp_path: Path, network_bytes: int
) -> None:
    client, server = pipes(issued(authority, tmp_path, 1), issued(authority, tmp_path, 2))
    talk(client, server)
    pieces: list[bytes | memoryview] = [
        b"length",
        os.urandom(200_000),
        b"",
        b"a",
        memoryview(os.urandom(70_000))[5:],
        b"z",
    ]
    sent = b"".join(client.send_pieces(pieces))
    assert client.take_outgoing() == b""
    found = b"".join(
        server.receive(sent[at : at + network_bytes]) for at in range(0, len(sent), network_bytes)
    )
    assert found == b"".join(pieces)
    assert client.send_pieces([]) == []


def test_both_sides_learn_who_the_other_is(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    client, server = pipes(issued(authority, tmp_path, 1), issued(authority, tmp_path, 2))
    talk(client, server)
    assert check_peer(server.certificate(), CLUSTER, None) == 1
    assert check_peer(client.certificate(), CLUSTER, NodeId(2)) == 2
    client.send(b"hello")
    assert server.receive(client.take_outgoing()) == b"hello"


def test_a_peer_is_refused_for_another_node_or_cluster(
    authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    client, server = pipes(issued(authority, tmp_path, 1), issued(authority, tmp_path, 2))
    talk(client, server)
    with pytest.raises(PeerIsAnotherNode) as another:
        check_peer(client.certificate(), CLUSTER, NodeId(3))
    assert another.value.facts == {"peer": 2, "expected": 3}
    with pytest.raises(PeerOfAnotherCluster):
        check_peer(client.certificate(), ClusterId("prod"), NodeId(2))


def test_a_foreign_authority_is_refused_by_either_side(
    authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    foreign = create_authority(tmp_path / "foreign", CLUSTER, datetime.now(UTC))
    ours, theirs = issued(authority, tmp_path, 1), tmp_path / "theirs"
    issue_node(foreign, NodeId(2), theirs, datetime.now(UTC))
    with pytest.raises(PeerUntrusted):
        talk(*pipes(ours, theirs))
    # A server whose certificate is believed, and a client whose is not.
    believing = tmp_path / "believing"
    issue_node(foreign, NodeId(3), believing, datetime.now(UTC))
    (believing / "ca.pem").write_bytes((ours / "ca.pem").read_bytes())
    with pytest.raises(PeerUntrusted):
        talk(*pipes(believing, ours))


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_certificate_past_its_end_is_refused(
    authority: DevelopmentAuthority, tmp_path: Path, side: str
) -> None:
    good = issued(authority, tmp_path, 1)
    expired = tmp_path / "expired"
    issue_node(authority, NodeId(2), expired, datetime.now(UTC) - timedelta(days=40))
    with pytest.raises(PeerCertificateExpired):
        talk(*(pipes(expired, good) if side == "client" else pipes(good, expired)))


def test_a_client_without_a_certificate_is_refused(
    authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    directory = issued(authority, tmp_path, 1)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(directory / "ca.pem")
    server = TlsPipe(server_context(directory), server_side=True)
    with pytest.raises(PeerRefused):
        talk(TlsPipe(bare, server_side=False), server)
    with pytest.raises(PeerWithoutIdentity):
        identity_of(None)


def test_what_is_no_tls_is_refused(authority: DevelopmentAuthority, tmp_path: Path) -> None:
    server = TlsPipe(server_context(issued(authority, tmp_path, 1)), server_side=True)
    with pytest.raises(PeerRefused):
        server.receive(b"GET / HTTP/1.1\r\n\r\n")


def test_the_authority_itself_is_no_node(authority: DevelopmentAuthority) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    with pytest.raises(PeerWithoutIdentity):
        identity_of(authority.certificate.public_bytes(Encoding.DER))


def test_private_keys_are_for_their_owner_only(
    authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    directory = issued(authority, tmp_path, 1)
    for path in (directory / "node.key", tmp_path / "ca" / "ca.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_authority_is_never_replaced_and_belongs_to_one_cluster(
    authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    with pytest.raises(CertificateUnusable):
        create_authority(tmp_path / "ca", CLUSTER, datetime.now(UTC))
    assert load_authority(tmp_path / "ca", CLUSTER).certificate == authority.certificate
    with pytest.raises(CertificateUnusable):
        load_authority(tmp_path / "ca", ClusterId("prod"))


def test_certificates_are_renewed_before_they_end(
    authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    assert needs_certificate(tmp_path / "nothing", datetime.now(UTC))
    directory = issued(authority, tmp_path, 1)
    assert own_identity(directory) == PeerIdentity(CLUSTER, NodeId(1))
    assert not needs_certificate(directory, datetime.now(UTC))
    assert needs_certificate(directory, datetime.now(UTC) + timedelta(days=21))


def test_an_unusable_certificate_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(CertificateUnusable):
        client_context(tmp_path)
    (tmp_path / "node.pem").write_text("not a certificate")
    with pytest.raises(CertificateUnusable):
        own_identity(tmp_path)


@pytest.mark.parametrize("name", ["", "Dev", "a.b", "-a", "a-", "a/b", "a" * 64])
def test_names_that_no_cluster_can_have(name: str) -> None:
    with pytest.raises(CertificateUnusable):
        cluster_id(name)
