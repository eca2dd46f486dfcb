"""What clients call a broker is in its certificate: names and addresses that were said, and where
it listens alone.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from clustor.runtime.pki.identity import AUTHORITY_FILE, utc_now
from quantum.config import BadValue, load
from quantum.edge.tls_development import SERVER_FILE, SERVER_KEY_FILE, pki_directory, prepare_server
from quantum.node.up import doors


def shake_hands(data: Path, names: frozenset[str], called: str) -> None:
    """Let a client that checks names meet the server; raises where it does not believe it."""
    prepare_server(data, utc_now(), names)
    pki = pki_directory(data)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pki / SERVER_FILE, pki / SERVER_KEY_FILE)
    client = ssl.create_default_context(cafile=pki / AUTHORITY_FILE)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname=called)
    theirs = server.wrap_bio(there, back, server_side=True)
    for _ in range(3):
        for each in (ours, theirs):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ours.getpeercert()


@pytest.mark.parametrize("called", ["broker.example", "192.0.2.7", "2001:db8::7", "localhost"])
def test_a_certificate_is_for_what_the_machine_is_called(tmp_path: Path, called: str) -> None:
    names = frozenset({"broker.example", "192.0.2.7", "2001:db8::7"})
    shake_hands(tmp_path, names, called)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path, names, "stranger.example")


def test_a_name_or_an_address_that_comes_later_renews_it_and_no_other_start_does(
    tmp_path: Path,
) -> None:
    shake_hands(tmp_path, frozenset(), "localhost")
    shake_hands(tmp_path, frozenset({"192.0.2.7"}), "192.0.2.7")
    file = pki_directory(tmp_path) / SERVER_FILE
    before = file.read_bytes()
    prepare_server(tmp_path, utc_now(), frozenset({"192.0.2.7"}))
    after = file.read_bytes()
    assert before == after


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, set()),
        ({"mqtts": "0.0.0.0:8883"}, set()),
        ({"mqtts": "192.0.2.7:8883"}, {"192.0.2.7"}),
        ({"mqtts": "0.0.0.0:8883", "server_name": "Broker.Example, 10.0.0.1"},
         {"broker.example", "10.0.0.1"}),
    ],
)  # fmt: skip
def test_the_settings_say_which(flags: dict[str, object], names: set[str]) -> None:
    assert doors(load(flags, {}).settings, development=True).server_names == names


@pytest.mark.parametrize("name", ["-x", "a b", "a..b", "http://x", "x" * 254])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(BadValue, match="must be names or addresses"):
        load({"server_name": name}, {})
