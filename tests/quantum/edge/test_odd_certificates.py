"""A certificate that TLS believes and nobody can read: one typed refusal, wherever it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustor.runtime.errors import CertificateUnreadable, PeerWithoutIdentity
from clustor.runtime.pki.certificates import read_certificate
from clustor.runtime.pki.identity import identity_of as node_identity_of
from clustor.runtime.pki.identity import utc_now
from quantum.admin.identity import peer_of
from quantum.edge.errors import ClientUnnamed
from quantum.edge.peer import identity_of
from quantum.edge.tls_development import pki_directory, prepare_server
from tests.quantum.edge.odd_certificates import ODDITIES, odd_certificate
from tests.quantum.edge.recording import Handlers
from tests.quantum.edge.test_tls import client_context, refused, serving


@pytest.mark.parametrize("name", ODDITIES)
def test_every_reader_refuses_it_by_name(name: str, tmp_path: Path) -> None:
    prepare_server(tmp_path, utc_now())
    der = odd_certificate(pki_directory(tmp_path), name, utc_now()).der
    with pytest.raises(CertificateUnreadable):
        read_certificate(der)
    with pytest.raises(ClientUnnamed):
        identity_of(der)
    with pytest.raises(PeerWithoutIdentity):
        node_identity_of(der)
    assert peer_of(der) is None


@pytest.mark.parametrize("der", [b"", b"\x30", b"\x30\x03\x02\x01\x01", bytes(300)])
def test_rubbish_is_unreadable(der: bytes) -> None:
    with pytest.raises(CertificateUnreadable):
        read_certificate(der)


@pytest.mark.parametrize("name", ODDITIES)
async def test_a_listener_refuses_it_and_goes_on(name: str, tmp_path: Path) -> None:
    handlers = Handlers()
    async with serving(tmp_path, handlers) as (listener, connect):
        odd = odd_certificate(pki_directory(tmp_path), name, utc_now())
        context = client_context(tmp_path, None)
        context.load_cert_chain(odd.certificate, odd.key)
        await refused(connect, context)
        assert not handlers.made
        assert listener.lobby.counts.refused == 1
