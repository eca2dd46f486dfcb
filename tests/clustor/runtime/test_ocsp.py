"""OCSP answers: who may sign them, how they age, and what peers on real connections see of it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.runtime.errors import CertificateUnusable
from clustor.runtime.pki.certificate_files import load_certificate
from clustor.runtime.pki.certificate_watch import NodeTrust
from clustor.runtime.pki.identity import (
    CERTIFICATE_FILE,
    REVOCATION_FILE,
    DevelopmentAuthority,
    NodeId,
    cluster_id,
    issue_certificate,
    issue_node,
    new_authority,
    utc_now,
)
from clustor.runtime.pki.ocsp import (
    OCSP_DIRECTORY,
    OcspCache,
    Subject,
    answer_for,
    read_answer,
    request_for,
)
from clustor.runtime.pki.peer_trust import fingerprint_of
from clustor.runtime.pki.revocation import write_revocations
from clustor.security.revocation import MAX_STALENESS_MS
from tests.clustor.runtime.test_rotation import Clock, Sink
from tests.clustor.runtime.test_transport import World, both_connected, world
from tests.clustor.runtime.waiting import until

DEV = cluster_id("dev")


@cache
def authority(generation: int = 1) -> DevelopmentAuthority:
    return new_authority(DEV, utc_now(), generation)


@cache
def stranger() -> DevelopmentAuthority:
    return authority(2)


def leaf(
    by: DevelopmentAuthority | None = None,
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
) -> tuple[x509.Certificate, bytes]:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier("spiffe://dev/node/1")]
    made = issue_certificate(
        by or authority(), "leaf", names, [usage], now=utc_now(), lifetime=timedelta(days=30)
    )
    return x509.load_pem_x509_certificate(made.certificate_pem), made.key_pem


def test_an_answer_of_the_authority_is_believed() -> None:
    certificate, _ = leaf()
    good = read_answer(
        answer_for(authority(), certificate, utc_now()),
        [stranger().certificate] * 2 + [authority().certificate],
    )
    assert good.subject == Subject(
        fingerprint_of(authority().certificate), certificate.serial_number
    )
    assert not good.is_revoked
    revoked = answer_for(authority(), certificate, utc_now(), revoked_at=utc_now())
    assert read_answer(revoked, [authority().certificate]).is_revoked


def delegated(usage: x509.ObjectIdentifier, by: DevelopmentAuthority | None = None) -> bytes:
    """A response that somebody signed whom an authority may have let."""
    certificate, _ = leaf()
    responder, key_pem = leaf(by, usage)
    key = load_pem_private_key(key_pem, None)
    built = (
        ocsp.OCSPResponseBuilder()
        .add_response(
            certificate, authority().certificate, hashes.SHA256(), ocsp.OCSPCertStatus.GOOD,
            utc_now(), utc_now() + timedelta(minutes=10), None, None,
        )
        .responder_id(ocsp.OCSPResponderEncoding.HASH, responder)
        .certificates([responder])
    )  # fmt: skip
    return built.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)  # type: ignore[arg-type]


def test_somebody_whom_the_authority_lets_may_sign() -> None:
    told = read_answer(delegated(ExtendedKeyUsageOID.OCSP_SIGNING), [authority().certificate])
    assert not told.is_revoked


def tampered() -> bytes:
    good = bytearray(answer_for(authority(), leaf()[0], utc_now()))
    good[-1] ^= 1
    return bytes(good)


UNBELIEVED = {
    "another authority's": lambda: answer_for(stranger(), leaf(stranger())[0], utc_now()),
    "signed by another": lambda: delegated(ExtendedKeyUsageOID.OCSP_SIGNING, stranger()),
    "not for that use": lambda: delegated(ExtendedKeyUsageOID.CLIENT_AUTH),
    "tampered with": tampered,
    "no answer": lambda: ocsp.OCSPResponseBuilder.build_unsuccessful(
        ocsp.OCSPResponseStatus.TRY_LATER
    ).public_bytes(Encoding.DER),
    "nonsense": lambda: b"nonsense",
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("make", UNBELIEVED.values(), ids=UNBELIEVED.keys())
def test_what_is_not_believed(make: object) -> None:
    with pytest.raises(CertificateUnusable):
        read_answer(make(), [authority().certificate])  # type: ignore[operator]


def test_answers_age_and_revocations_stay(tmp_path: Path) -> None:
    clock, now = Clock(), utc_now()
    answers = OcspCache(tmp_path, clock)
    certificate, _ = leaf()
    good = read_answer(
        answer_for(authority(), certificate, now - timedelta(seconds=100)),
        [authority().certificate],
    )
    assert answers.age_ms(good.subject) is None
    answers.learn(good, now)
    assert 100_000 <= (answers.age_ms(good.subject) or 0) < 101_000
    clock.now_ms += 5_000
    assert 105_000 <= (answers.newest_age_ms() or 0) < 106_000
    older = answer_for(authority(), certificate, now - timedelta(seconds=200), revoked_at=now)
    answers.learn(read_answer(older, [authority().certificate]), now)
    assert answers.is_revoked(good.subject)
    assert 105_000 <= (answers.age_ms(good.subject) or 0) < 106_000
    ended = answer_for(authority(), leaf()[0], now - timedelta(days=2), lifetime=timedelta(days=1))
    late = read_answer(ended, [authority().certificate])
    answers.learn(late, now)
    assert answers.age_ms(late.subject) is None


# On real connections.


@asynccontextmanager
async def calm_world(root: Path) -> AsyncIterator[World]:
    """A world whose peers have stopped to call each other before it ends."""
    async with world(root) as made:
        try:
            yield made
        finally:
            for one, other in itertools.permutations(made.peers, 2):
                one.transport.disconnect(other.node)
            for _ in range(50):  # handshakes that were under way hear of it
                await asyncio.sleep(0)


def put(made: World, pki: Path, of: Path, name: str, **more: object) -> None:
    certificate = load_certificate(of / CERTIFICATE_FILE)
    directory = pki / OCSP_DIRECTORY
    directory.mkdir(exist_ok=True)
    answer = answer_for(made.authority, certificate, utc_now(), **more)  # type: ignore[arg-type]
    (directory / f"{name}.der").write_bytes(answer)


async def test_answers_alone_let_peers_in_and_cut_the_revoked_off(tmp_path: Path) -> None:
    async with calm_world(tmp_path) as made:
        pki, second, third = (made.root / f"own-{node}" for node in (1, 2, 3))
        for node, directory in ((1, pki), (2, second), (3, third)):
            issue_node(made.authority, NodeId(node), directory, utc_now())
        put(made, pki, second, "second")
        one, two = await made.peer(1, pki), await made.peer(2, second)
        three = await made.peer(3, third)
        sink, told = Sink(), list[Exception]()
        trust = NodeTrust(one.transport, pki, sink, Clock())
        one.transport.on_refused = lambda _peer, error: told.append(error)
        await both_connected(one, two)
        three.transport.connect(one.node, one.address)
        await until(lambda: bool(told), "nobody vouches for the third")
        assert "no revocation data about it is fresh" in str(told[0])
        put(made, pki, second, "news", revoked_at=utc_now())
        trust.look()
        assert ("PeerConnectionEnded", "CertificateRefused") in sink.said()
        await until(lambda: two.node not in one.transport.connected(), "it is cut off")


async def test_an_old_answer_leaves_the_word_to_the_list(tmp_path: Path) -> None:
    async with calm_world(tmp_path) as made:
        pki, second = made.root / "own-1", made.root / "own-2"
        for node, directory in ((1, pki), (2, second)):
            issue_node(made.authority, NodeId(node), directory, utc_now())
        put(made, pki, second, "second", lifetime=timedelta(days=1))
        one, two = await made.peer(1, pki), await made.peer(2, second)
        clock, sink = Clock(), Sink()
        trust = NodeTrust(one.transport, pki, sink, clock)
        await both_connected(one, two)
        clock.now_ms += MAX_STALENESS_MS - 1_000
        trust.look()
        assert two.node in one.transport.connected()
        write_revocations(made.authority, {}, pki / REVOCATION_FILE, utc_now())
        clock.now_ms += 60_000
        trust.look()
        assert two.node in one.transport.connected()
        (pki / REVOCATION_FILE).unlink()
        clock.now_ms += MAX_STALENESS_MS + 1
        trust.look()
        assert one.transport.quarantined
        assert ("RevocationQuarantine", "Entered") in sink.said()


class Responder(BaseHTTPRequestHandler):
    authority: DevelopmentAuthority
    certificates: dict[int, x509.Certificate]
    asked: list[int]

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        serial = ocsp.load_der_ocsp_request(content).serial_number
        self.asked.append(serial)
        answer = answer_for(self.authority, self.certificates[serial], utc_now())
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_words: object) -> None: ...


@contextmanager
def responder(authority: DevelopmentAuthority, *files: Path) -> Iterator[tuple[str, list[int]]]:
    known = [load_certificate(file / CERTIFICATE_FILE) for file in files]
    Responder.authority, Responder.asked = authority, []
    Responder.certificates = {each.serial_number: each for each in known}
    with HTTPServer(("127.0.0.1", 0), Responder) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", Responder.asked
        finally:
            server.shutdown()
            thread.join(60)


async def test_a_responder_is_asked_about_whoever_comes(tmp_path: Path) -> None:
    async with calm_world(tmp_path) as made:
        pki, second = made.root / "own-1", made.root / "own-2"
        for node, directory in ((1, pki), (2, second)):
            issue_node(made.authority, NodeId(node), directory, utc_now())
        one, two = await made.peer(1, pki), await made.peer(2, second)
        with responder(made.authority, pki, second) as (url, asked):
            trust = NodeTrust(one.transport, pki, None, Clock(), url)
            assert one.transport.quarantined  # nobody is trusted before the first answer
            two.transport.connect(one.node, one.address)
            one.transport.connect(two.node, two.address)

            def connected() -> bool:
                trust.look()
                return two.node in one.transport.connected()

            await until(connected, "the responder vouches for it")
            files = (pki, second)
            serials = {load_certificate(each / CERTIFICATE_FILE).serial_number for each in files}
            assert set(asked) == serials
            await until(lambda: not is_asking(trust), "it has asked")
            trust.look()  # an answer may have come while the look before it was at work
            await until(lambda: not is_asking(trust), "it has asked")
            count = len(asked)
            trust.look()
            assert len(asked) == count and not is_asking(trust)  # fresh ones are not asked for


def is_asking(trust: NodeTrust) -> bool:
    running = trust._asking._running if trust._asking is not None else None
    return running is not None and running.is_alive()


def test_a_question_names_the_certificate_and_its_issuer() -> None:
    certificate, _ = leaf()
    asked = ocsp.load_der_ocsp_request(
        request_for(authority().certificate, certificate.serial_number)
    )
    built = ocsp.OCSPRequestBuilder().add_certificate(
        certificate, authority().certificate, hashes.SHA256()
    )
    assert asked.public_bytes(Encoding.DER) == built.build().public_bytes(Encoding.DER)
