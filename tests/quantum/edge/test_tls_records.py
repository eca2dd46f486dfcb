"""Records behind a handshake: RFC 8446 §5, against itself, against OpenSSL, and broken ones."""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from quantum.edge import tls_records
from quantum.edge.errors import ClientRefused
from quantum.edge.listener_tls import TlsConnection
from quantum.edge.tls_development import issue_client, pki_directory, prepare_server
from quantum.edge.tls_records import PLAIN_BYTES_MAX, SUITES, Keys, Suite, TlsRecords, expand_label
from quantum.edge.tls_secrets import SecretsFile, read_secrets
from quantum.edge.tls_session import TlsSession
from tests.quantum.edge.recording import HOST, Handlers
from tests.quantum.edge.test_tls import NOW, client_context, serving

AES_128 = SUITES["TLS_AES_128_GCM_SHA256"]
ALERT, HANDSHAKE, DATA = b"\x15", b"\x16", b"\x17"
KEY_UPDATE = b"\x18\x00\x00\x01"


def pair(suite: Suite = AES_128) -> tuple[TlsRecords, TlsRecords]:
    """Two ends of one session."""
    one, other = bytes(suite.secret_bytes), b"\x01" * suite.secret_bytes
    return (
        TlsRecords(suite, read_secret=one, write_secret=other),
        TlsRecords(suite, read_secret=other, write_secret=one),
    )


class Peer:
    """The other end, which may say anything in a record, in any padding."""

    def __init__(self) -> None:
        self._keys = Keys(AES_128, bytes(32))

    def seal(self, inner: bytes, kind: bytes = b"\x17") -> bytes:
        header = kind + b"\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        return header + self._keys.cipher.encrypt(self._keys.nonce(), inner, header)

    def renew(self) -> None:
        self._keys.renew()


class TestKeys:
    def test_rfc_8448_section_3(self) -> None:
        secret = bytes.fromhex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")
        key, iv = (
            expand_label(AES_128, secret, b"key", 16),
            expand_label(AES_128, secret, b"iv", 12),
        )
        assert key.hex() == "9f02283b6c9c07efc26bb9f2ac92e356"
        assert iv.hex() == "cf782b88dd83549aadf1e984"

    def test_a_nonce_is_never_drawn_twice(self) -> None:
        keys = Keys(AES_128, bytes(32))
        assert len({keys.nonce() for _ in range(1000)}) == 1000

    def test_the_next_secret_begins_anew_under_another_key(self) -> None:
        keys = Keys(AES_128, bytes(32))
        nonce = keys.nonce()
        before = keys.cipher.encrypt(nonce, b"same", b"")
        keys.renew()
        assert keys.sequence == 0
        assert keys.cipher.encrypt(nonce, b"same", b"") != before


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES.keys())
class TestRoundTrip:
    @pytest.mark.parametrize("size", [1, 100, PLAIN_BYTES_MAX, PLAIN_BYTES_MAX + 1, 100_000])
    def test_what_is_sent_arrives_however_it_is_cut(self, suite: Suite, size: int) -> None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        server, client = pair(suite)
        data = rng.randbytes(size)
        wire = client.send(data) + client.send(b"neighbour")
        arrived = bytearray()
        at = 0
        while at < len(wire):
            step = rng.choice([1, 4, 5, 6, 1000, 20_000]) if size > 100 else 1
            plain, ended = server.receive(wire[at : at + step])
            arrived += plain
            at += step
            assert not ended
        assert arrived == data + b"neighbour"

    def test_the_end_is_told(self, suite: Suite) -> None:
        server, client = pair(suite)
        assert server.receive(client.send(b"last") + client.end()) == (b"last", True)


class TestRecords:
    def test_padding_is_taken_off(self) -> None:
        server, _ = pair()
        assert server.receive(Peer().seal(b"data\x00" + DATA + bytes(50))) == (b"data\x00", False)

    def test_no_record_is_longer_than_the_standard_lets_it_be(self) -> None:
        server, client = pair()
        wire = client.send(bytes(3 * PLAIN_BYTES_MAX))
        assert len(wire) == 3 * (5 + PLAIN_BYTES_MAX + 1 + 16)
        assert len(server.receive(wire)[0]) == 3 * PLAIN_BYTES_MAX

    def test_an_empty_record_is_nothing(self) -> None:
        server, _ = pair()
        assert server.receive(Peer().seal(DATA)) == (b"", False)

    def test_user_canceled_is_not_the_end_and_what_follows_is(self) -> None:
        server, peer = pair()[0], Peer()
        assert server.receive(peer.seal(b"\x01\x5a" + ALERT)) == (b"", False)
        assert server.receive(peer.seal(b"\x01\x00" + ALERT)) == (b"", True)

    def test_what_follows_the_end_is_not_heard(self) -> None:
        server, client = pair()
        assert server.receive(client.end() + client.send(b"more")) == (b"", True)


BROKEN = {
    "another type outside": (lambda peer: peer.seal(b"x" + DATA, b"\x15"), 10),
    "a change of ciphers": (lambda _: b"\x14\x03\x03\x00\x01\x01", 10),
    "too long to be held": (lambda _: b"\x17\x03\x03\x41\x01", 22),
    "too much inside": (lambda peer: peer.seal(bytes(PLAIN_BYTES_MAX + 1) + DATA), 22),
    "nothing but padding": (lambda peer: peer.seal(bytes(10)), 10),
    "an unknown type inside": (lambda peer: peer.seal(b"x\x18"), 10),
    "shorter than its tag": (lambda _: b"\x17\x03\x03\x00\x03abc", 20),
    "rubbish": (lambda _: b"\x17\x03\x03\x00\x20" + bytes(32), 20),
    "a header that was touched": (
        lambda peer: b"\x17\x03\x02" + peer.seal(b"x" + DATA)[3:],
        20,
    ),
    "a bit that was touched": (
        lambda peer: bytes(each ^ (nth == 7) for nth, each in enumerate(peer.seal(b"x" + DATA))),
        20,
    ),
    "one left out": (lambda peer: (peer.seal(b"1" + DATA), peer.seal(b"2" + DATA))[1], 20),
    "one twice": (lambda peer: peer.seal(b"1" + DATA) * 2, 20),
    "a long alert": (lambda peer: peer.seal(b"\x01\x00\x00" + ALERT), 50),
    "a certificate": (lambda peer: peer.seal(b"\x0b\x00\x00\x00" + HANDSHAKE), 10),
    "a key update that asks for nothing known": (
        lambda peer: peer.seal(KEY_UPDATE + b"\x02" + HANDSHAKE),
        10,
    ),
    "half a key update": (lambda peer: peer.seal(KEY_UPDATE + HANDSHAKE), 10),
    "something behind a key update": (
        lambda peer: peer.seal(KEY_UPDATE + b"\x00" + KEY_UPDATE + b"\x00" + HANDSHAKE),
        10,
    ),
    "records without data, without end": (
        lambda peer: b"".join(peer.seal(DATA) for _ in range(17)),
        10,
    ),
}


@pytest.mark.parametrize(("say", "alert"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_broken_is_refused_with_its_alert(say: object, alert: int) -> None:
    server, client = pair()
    with pytest.raises(ClientRefused) as caught:
        server.receive(say(Peer()))  # type: ignore[operator]
    assert caught.value.facts["alert"] == alert
    said = server.take_outgoing()
    with pytest.raises(ClientRefused) as heard:
        client.receive(said)
    assert heard.value.facts["alert"] == alert


def test_a_client_that_ends_with_an_alert_is_not_answered() -> None:
    server, _ = pair()
    with pytest.raises(ClientRefused):
        server.receive(Peer().seal(b"\x02\x28" + ALERT))
    assert server.take_outgoing() == b""


class TestKeyUpdate:
    def test_new_keys_of_the_peer_are_followed(self) -> None:
        server, peer = pair()[0], Peer()
        wire = peer.seal(b"old" + DATA) + peer.seal(KEY_UPDATE + b"\x00" + HANDSHAKE)
        peer.renew()
        assert server.receive(wire + peer.seal(b"new" + DATA)) == (b"oldnew", False)
        assert server.take_outgoing() == b""

    def test_who_asks_for_ours_gets_them(self) -> None:
        (server, client), peer = pair(), Peer()
        server.receive(peer.seal(KEY_UPDATE + b"\x01" + HANDSHAKE))
        update = server.take_outgoing()
        assert client.receive(update + server.send(b"hello")) == (b"hello", False)
        with pytest.raises(ClientRefused):  # without having heard of the update
            pair()[1].receive(server.send(b"hello"))

    def test_a_key_is_not_used_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tls_records, "_RECORDS_PER_KEY", 5)
        server, client = pair()
        wires = [server.send(bytes((number,))) for number in range(100)]
        assert b"".join(client.receive(each)[0] for each in wires) == bytes(range(100))
        assert [len(each) > 23 for each in wires].count(True) == 19  # those that bring an update


class TestSecrets:
    def test_both_must_be_there_and_of_one_client(self) -> None:
        client, server = b"CLIENT_TRAFFIC_SECRET_0 01 aa", b"SERVER_TRAFFIC_SECRET_0 01 bb"
        assert read_secrets([server, client]) == (b"\xaa", b"\xbb")
        assert read_secrets([client]) is None
        assert read_secrets([client, client]) is None
        assert read_secrets([client, server.replace(b" 01 ", b" 02 ")]) is None

    async def test_nothing_is_left_where_they_were_told(self, tmp_path: Path) -> None:
        handlers = Handlers()
        client = issue_client(tmp_path, "lamp", NOW)
        async with serving(tmp_path, handlers) as (listener, connect):
            context = client_context(tmp_path, client)
            reader, writer = await connect(ssl=context, server_hostname="localhost")
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"HELLO"
            assert listener.certificates.secrets.take() == []
            assert is_settled(handlers)

    async def test_without_them_openssl_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SecretsFile, "take", lambda _self: [])
        handlers = Handlers()
        client = issue_client(tmp_path, "lamp", NOW)
        async with serving(tmp_path, handlers) as (_, connect):
            context = client_context(tmp_path, client)
            reader, writer = await connect(ssl=context, server_hostname="localhost")
            writer.write(b"x" * 100_000)
            assert await reader.readexactly(100_000) == b"X" * 100_000
            assert not is_settled(handlers)


def is_settled(handlers: Handlers) -> bool:
    wire = handlers.made[0].wire
    assert isinstance(wire, TlsConnection) and wire.session is not None
    return wire.session.is_settled


def test_what_comes_with_the_end_of_the_handshake_is_not_lost(tmp_path: Path) -> None:
    """A client may send its first packets in one segment with its Finished."""
    certificates = prepare_server(tmp_path, NOW)
    context = client_context(tmp_path, issue_client(tmp_path, "lamp", NOW))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="localhost")
    session = TlsSession(certificates.terms.context)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    session.shake_hands(to_server.read(), lambda _name: "dev", certificates)
    to_client.write(session.take_outgoing())
    client.do_handshake()
    client.write(b"first" * 1000)
    client.write(b"second")
    session.shake_hands(to_server.read(), lambda _name: "dev", certificates)
    session.settle()
    assert session.is_settled
    assert session.receive(b"") == (b"first" * 1000 + b"second", False)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
@pytest.mark.parametrize("suite", SUITES.keys())
async def test_openssl_understands_every_suite_and_changes_keys(suite: str, tmp_path: Path) -> None:
    """`k` lets s_client change its keys, `K` makes it ask for ours as well."""
    handlers = Handlers()
    client = issue_client(tmp_path, "lamp", NOW)
    async with serving(tmp_path, handlers) as (listener, _):
        process = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", f"{HOST}:{listener.port}", "-ciphersuites", suite),
            *(
                "-cert",
                str(client.certificate),
                "-key",
                str(client.key),
                "-servername",
                "localhost",
            ),
            *("-CAfile", str(pki_directory(tmp_path) / "ca.pem"), "-verify_return_error"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdin is not None and process.stdout is not None
        for number, command in enumerate(("", "k", "K", "k", "K")):
            if command:
                process.stdin.write(f"{command}\n".encode())
                await asyncio.wait_for(process.stdout.readuntil(b"KEYUPDATE"), 10)
            process.stdin.write(f"word {number}\n".encode())
            await asyncio.wait_for(process.stdout.readuntil(f"WORD {number}\n".encode()), 10)
        assert is_settled(handlers)
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 10)
        assert b"word 4" in handlers.made[0].data
