"""Records behind a handshake: RFC 8446 §5, against itself, against OpenSSL, and broken ones."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from clustor.runtime.pki.identity import utc_now
from quantum.edge import tls_records
from quantum.edge.errors import ClientRefused
from quantum.edge.listener_tls import TlsConnection
from quantum.edge.tls_development import (
    ClientFiles,
    issue_client,
    pki_directory,
    prepare_server,
)
from quantum.edge.tls_hello import RecordBounds, limits_records
from quantum.edge.tls_records import (
    PLAIN_BYTES_MAX,
    SUITES,
    RecordKeys,
    Suite,
    TlsRecords,
    expand_label,
)
from quantum.edge.tls_secrets import SecretsFile, read_secrets
from quantum.edge.tls_session import TlsSession
from tests.quantum.edge.recording import HOST, Handlers
from tests.quantum.edge.test_tls import client_context, serving

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
        self._keys = RecordKeys(AES_128, bytes(32))

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
        keys = RecordKeys(AES_128, bytes(32))
        assert len({keys.nonce() for _ in range(1000)}) == 1000

    def test_the_next_secret_begins_anew_under_another_key(self) -> None:
        keys = RecordKeys(AES_128, bytes(32))
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


RANDOM = b"00" * 32
CLIENT_LINE = b"CLIENT_TRAFFIC_SECRET_0 " + RANDOM + b" aaaa"
SERVER_LINE = b"SERVER_TRAFFIC_SECRET_0 " + RANDOM + b" bbbb"
OTHER_LINE = b"EXPORTER_SECRET " + RANDOM + b" cccc"
TOLD = {
    "both": ([SERVER_LINE, CLIENT_LINE], False),
    "both and another": ([SERVER_LINE, OTHER_LINE, CLIENT_LINE], False),
    "nothing": ([], True),
    "one": ([CLIENT_LINE], True),
    "one twice": ([CLIENT_LINE, SERVER_LINE, CLIENT_LINE], True),
    "of another client": ([CLIENT_LINE, SERVER_LINE.replace(RANDOM, b"01" * 32)], True),
    "of another client alone": ([OTHER_LINE.replace(RANDOM, b"01" * 32)], True),
    "too short": ([CLIENT_LINE, SERVER_LINE[:-2]], True),
    "half a byte": ([CLIENT_LINE, SERVER_LINE[:-1]], True),
    "a word more": ([CLIENT_LINE, SERVER_LINE + b" 00"], True),
    "a word less": ([CLIENT_LINE, SERVER_LINE.rsplit(b" ", 1)[0]], True),
    "a torn line beside": ([CLIENT_LINE, SERVER_LINE, b"ECRET_7 00"], True),
    "no text": ([CLIENT_LINE, SERVER_LINE, b"\xff\x00"], True),
}


class TestSecrets:
    @pytest.mark.parametrize(("told", "stays"), TOLD.values(), ids=TOLD.keys())
    def test_anything_but_one_line_of_each_stays_with_openssl(
        self, told: list[bytes], stays: bool
    ) -> None:
        found = read_secrets(b"".join(line + b"\n" for line in told), bytes(32), 2)
        assert found == (None if stays else (b"\xaa\xaa", b"\xbb\xbb"))

    def test_a_line_without_its_end_stays_with_openssl(self) -> None:
        assert read_secrets(CLIENT_LINE + b"\n" + SERVER_LINE, bytes(32), 2) is None

    def test_what_is_told_is_read_whole(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        secrets = SecretsFile()
        secrets.listen_to(context)
        secrets.take()  # Python has a word before the first
        with open(context.keylog_filename, "ab") as told:
            told.write(b"x" * 100_000)
        assert secrets.take() == b"x" * 100_000
        assert secrets.take() == b""

    async def test_nothing_is_left_where_they_were_told(self, tmp_path: Path) -> None:
        handlers = Handlers()
        client = issue_client(tmp_path, "lamp", utc_now())
        async with serving(tmp_path, handlers, own_records=True) as (listener, connect):
            context = client_context(tmp_path, client)
            reader, writer = await connect(ssl=context, server_hostname="localhost")
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"HELLO"
            secrets = listener.certificates.secrets
            assert secrets is not None and secrets.take() == b""
            assert is_settled(handlers)

    async def test_without_them_openssl_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SecretsFile, "take", lambda _self: b"")
        handlers = Handlers()
        client = issue_client(tmp_path, "lamp", utc_now())
        async with serving(tmp_path, handlers, own_records=True) as (_, connect):
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
    certificates = prepare_server(tmp_path, utc_now(), own_records=True)
    context = client_context(tmp_path, issue_client(tmp_path, "lamp", utc_now()))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="localhost")
    session = TlsSession(certificates.terms.context, certificates.secrets)
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


async def test_openssl_makes_the_records_unless_told_otherwise(tmp_path: Path) -> None:
    handlers = Handlers()
    client = issue_client(tmp_path, "lamp", utc_now())
    async with serving(tmp_path, handlers) as (listener, connect):
        context = client_context(tmp_path, client)
        reader, writer = await connect(ssl=context, server_hostname="localhost")
        writer.write(b"x" * 100_000)
        assert await reader.readexactly(100_000) == b"X" * 100_000
        assert not is_settled(handlers)
        assert listener.certificates.secrets is None
        assert listener.certificates.terms.context.keylog_filename is None


def test_records_end_where_their_heads_say() -> None:
    sizes = (0, 1, 5, 300, 2)
    wire = b"".join(b"\x17\x03\x03" + n.to_bytes(2, "big") + bytes(n) for n in sizes)
    ends = [sum(sizes[: n + 1]) + 5 * (n + 1) for n in range(len(sizes))]
    for step in (1, 3, 256, len(wire)):
        bounds = RecordBounds()
        for at in range(0, len(wire), step):
            bounds.feed(wire[at : at + step])
            within = range(at + 1, min(at + step, len(wire)) + 1)
            assert [n for n in within if bounds.is_bound(n)] == [n for n in ends if n in within]


def client_hello(**extensions: bytes) -> bytes:
    """A ClientHello in one record, with these extensions (`e1` is number 1)."""
    bodies = [
        int(name[1:]).to_bytes(2, "big") + len(body).to_bytes(2, "big") + body
        for name, body in extensions.items()
    ]
    joined = b"".join(bodies)
    hello = b"\x03\x03" + bytes(32) + b"\x02id" + b"\x00\x02\x13\x01" + b"\x01\x00"
    hello += len(joined).to_bytes(2, "big") + joined
    message = b"\x01" + len(hello).to_bytes(3, "big") + hello
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


HELLOS = {
    "nothing": (client_hello(), False),
    "others": (client_hello(e0=b"name", e43=b"\x02\x03\x04"), False),
    "max_fragment_length": (client_hello(e0=b"name", e1=b"\x01"), True),
    "record_size_limit": (client_hello(e28=b"\x02\x00", e43=b""), True),
    "half of it": (client_hello(e0=b"name")[:-3], True),
    "rubbish": (b"GET / HTTP/1.1", True),
    "silence": (b"", True),
}


@pytest.mark.parametrize(("said", "binds"), HELLOS.values(), ids=HELLOS.keys())
def test_what_a_client_asks_of_our_records(said: bytes, binds: bool) -> None:
    assert limits_records(said) is binds


def test_a_hello_may_come_in_several_records() -> None:
    message = client_hello(e1=b"\x01")[5:]
    cut = [message[:1], message[1:30], message[30:]]
    records = [b"\x16\x03\x01" + len(each).to_bytes(2, "big") + each for each in cut]
    assert limits_records(b"".join(records)) is True
    plain = client_hello(e2=b"\x01")[5:]
    records = [b"\x16\x03\x01\x00\x01" + bytes((each,)) for each in plain]
    assert limits_records(b"".join(records)) is False


def s_client(port: int, data: Path, client: ClientFiles, *more: str) -> list[str]:
    return [
        *("openssl", "s_client", "-connect", f"{HOST}:{port}", "-servername", "localhost"),
        *("-cert", str(client.certificate), "-key", str(client.key), "-verify_return_error"),
        *("-CAfile", str(pki_directory(data) / "ca.pem"), *more),
    ]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
async def test_who_wants_short_records_gets_them_from_openssl(tmp_path: Path) -> None:
    """RFC 6066 §4: a small device has no room for more."""
    handlers = Handlers(lambda said: said.upper() + b"x" * 5_000 + b"end\n")
    client = issue_client(tmp_path, "lamp", utc_now())
    async with serving(tmp_path, handlers, own_records=True) as (listener, _):
        process = await asyncio.create_subprocess_exec(
            *s_client(listener.port, tmp_path, client, "-maxfraglen", "512"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"word\n")
        await asyncio.wait_for(process.stdout.readuntil(b"xend\n"), 120)
        assert not is_settled(handlers)
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 120)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
@pytest.mark.parametrize("suite", SUITES.keys())
async def test_openssl_understands_every_suite_and_changes_keys(suite: str, tmp_path: Path) -> None:
    """`k` lets s_client change its keys, `K` makes it ask for ours as well."""
    handlers = Handlers()
    client = issue_client(tmp_path, "lamp", utc_now())
    async with serving(tmp_path, handlers, own_records=True) as (listener, _):
        process = await asyncio.create_subprocess_exec(
            *s_client(listener.port, tmp_path, client, "-ciphersuites", suite),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdin is not None and process.stdout is not None
        for number, command in enumerate(("", "k", "K", "k", "K")):
            if command:
                process.stdin.write(f"{command}\n".encode())
                await asyncio.wait_for(process.stdout.readuntil(b"KEYUPDATE"), 120)
            process.stdin.write(f"word {number}\n".encode())
            await asyncio.wait_for(process.stdout.readuntil(f"WORD {number}\n".encode()), 120)
        assert is_settled(handlers)
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 120)
        assert b"word 4" in handlers.made[0].data


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
async def test_keys_that_change_at_openssl_are_told_to_no_other_handshake(tmp_path: Path) -> None:
    handlers = Handlers()
    client = issue_client(tmp_path, "lamp", utc_now())
    async with serving(tmp_path, handlers, own_records=True) as (listener, connect):
        process = await asyncio.create_subprocess_exec(
            *s_client(listener.port, tmp_path, client, "-maxfraglen", "512"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdin is not None and process.stdout is not None
        for number in range(18):
            process.stdin.write(b"K\n")
            await asyncio.wait_for(process.stdout.readuntil(b"KEYUPDATE"), 120)
            process.stdin.write(f"word {number}\n".encode())
            await asyncio.wait_for(process.stdout.readuntil(f"WORD {number}\n".encode()), 120)
        assert not is_settled(handlers)
        context = client_context(tmp_path, client)
        reader, writer = await connect(ssl=context, server_hostname="localhost")
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        assert listener.lobby.counts.refused == 0
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 120)


def test_little_is_kept_for_who_is_not_believed_yet(tmp_path: Path) -> None:
    certificates = prepare_server(tmp_path, utc_now())
    for said in (
        b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\x00" + bytes(0x4000 - 4),
        b"\x16\x03\x01\x00\x01\x01" + b"\x16\x03\x01\x00\x01\x00" * 30_000,
    ):
        session = TlsSession(certificates.terms.context)
        with pytest.raises(ClientRefused):
            session.shake_hands(said * 20, lambda _name: "dev", certificates)
        assert not session.established


async def shake_hands(sock: socket.socket, context: ssl.SSLContext) -> TlsRecords:
    """Be a client that makes its own records behind the handshake, and reads none."""
    loop = asyncio.get_running_loop()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    is_over = False
    while not is_over:
        try:
            client.do_handshake()
            is_over = True
        except ssl.SSLWantReadError:
            pass
        await loop.sock_sendall(sock, outgoing.read())
        if not is_over:
            incoming.write(await loop.sock_recv(sock, 1 << 16))
    told = Path(context.keylog_filename).read_text().split()
    named = [n for n, word in enumerate(told) if "TRAFFIC_SECRET" in word]
    secrets = {told[n]: bytes.fromhex(told[n + 2]) for n in named}
    cipher = client.cipher()
    assert cipher is not None
    return TlsRecords(
        SUITES[cipher[0]],
        read_secret=secrets["SERVER_TRAFFIC_SECRET_0"],
        write_secret=secrets["CLIENT_TRAFFIC_SECRET_0"],
    )


def update_requested(client: TlsRecords) -> bytes:
    """Change our keys, and ask for others in turn."""
    write = client._write
    content = b"\x18\x00\x00\x01\x01" + HANDSHAKE
    header = b"\x17\x03\x03" + (len(content) + 16).to_bytes(2, "big")
    said = header + write.cipher.encrypt(write.nonce(), content, header)
    write.renew()
    return said


async def test_who_asks_for_keys_and_reads_none_is_not_read(tmp_path: Path) -> None:
    handlers = Handlers(lambda _said: b"")
    context = client_context(tmp_path, issue_client(tmp_path, "lamp", utc_now()))
    context.keylog_filename = str(tmp_path / "keys")
    async with serving(tmp_path, handlers, own_records=True) as (listener, _):
        lobby = listener.lobby
        lobby.limits = replace(lobby.limits, write_high_water_bytes=1024, unread_bytes_max=4096)
        assert listener._server is not None
        with socket.socket(fileno=os.dup(listener._server.sockets[0].fileno())) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # who comes inherits it
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(0)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, (HOST, listener.port))
            client = await shake_hands(sock, context)
            for _ in range(1_000):  # until it is left unread
                piece = b"".join(update_requested(client) + client.send(b"x") for _ in range(100))
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(loop.sock_sendall(sock, piece), 10)
                if lobby.counts.left_unread:
                    break
            assert lobby.counts.left_unread
            assert is_settled(handlers)
