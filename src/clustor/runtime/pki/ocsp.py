"""Answers of an OCSP responder, kept beside the trust bundle, and asked before any list.

pki/ocsp/<anything>.der   one response each; who brings them, this node or people, is the same

Python's `ssl` staples nothing into a handshake. So a node keeps answers about its peers here, and
asks for them (`ocsp_url` of cluster.json) before they are old. A response is believed when an
authority of the bundle signed it, or somebody whom that authority lets sign responses.
"""

from __future__ import annotations

import http.client
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.runtime.errors import CertificateUnusable
from clustor.runtime.pki.certificate_files import replace_file
from clustor.runtime.pki.identity import DevelopmentAuthority, hash_for, utc_now
from clustor.runtime.pki.peer_trust import Fingerprint, fingerprint_of

OCSP_DIRECTORY: Final = "ocsp"
ASK_AFTER_MS: Final = 60_000
"""Answers older than this are asked for again."""
_RESPONSE_BYTES_MAX: Final = 64 << 10
_FILES_MAX: Final = 4_096
_SECONDS_MAX: Final = 5.0

journal = logging.getLogger("clustor.rotation")


@dataclass(frozen=True, slots=True)
class Subject:
    """A certificate, as a responder is asked about it."""

    issuer: Fingerprint
    serial: int


@dataclass(frozen=True, slots=True)
class OcspAnswer:
    """What a responder said about one certificate."""

    subject: Subject
    is_revoked: bool
    made_at: datetime
    ends_at: datetime | None


def read_answer(response_der: bytes, authorities: Iterable[x509.Certificate]) -> OcspAnswer:
    """Read a response; raises CertificateUnusable for one that nobody of these vouches for."""
    try:
        response = ocsp.load_der_ocsp_response(response_der)
        if response.response_status is not ocsp.OCSPResponseStatus.SUCCESSFUL:
            raise CertificateUnusable("the responder had no answer")
        issuer = next((each for each in authorities if _is_about(response, each)), None)
        if issuer is None:
            raise CertificateUnusable("a response about another authority's certificate")
        _verify(response, issuer)
        if response.certificate_status is ocsp.OCSPCertStatus.UNKNOWN:
            raise CertificateUnusable("the responder does not know the certificate")
        return OcspAnswer(
            Subject(fingerprint_of(issuer), response.serial_number),
            response.certificate_status is ocsp.OCSPCertStatus.REVOKED,
            response.this_update_utc,
            response.next_update_utc,
        )
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise CertificateUnusable("an OCSP response cannot be believed") from error


def _is_about(response: ocsp.OCSPResponse, issuer: x509.Certificate) -> bool:
    name, key = _hashes(issuer, response.hash_algorithm)
    return (response.issuer_name_hash, response.issuer_key_hash) == (name, key)


def _hashes(issuer: x509.Certificate, algorithm: hashes.HashAlgorithm) -> tuple[bytes, bytes]:
    key = issuer.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return _digest(issuer.subject.public_bytes(), algorithm), _digest(_bit_string(key), algorithm)


def _bit_string(key_info: bytes) -> bytes:
    """Return the key within a SubjectPublicKeyInfo: it is its last member, behind one zero byte."""
    key = serialization.load_der_public_key(key_info)
    if isinstance(key, ec.EllipticCurvePublicKey):
        point = serialization.PublicFormat.UncompressedPoint
        return key.public_bytes(serialization.Encoding.X962, point)
    if isinstance(key, Ed25519PublicKey):
        return key.public_bytes_raw()
    raise CertificateUnusable("an authority's key of another kind")


def _digest(content: bytes, algorithm: hashes.HashAlgorithm) -> bytes:
    digest = hashes.Hash(algorithm)
    digest.update(content)
    return digest.finalize()


def _verify(response: ocsp.OCSPResponse, issuer: x509.Certificate) -> None:
    signer = issuer
    if response.certificates:
        signer = response.certificates[0]
        if signer != issuer:
            signer.verify_directly_issued_by(issuer)
            usages = signer.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            now = utc_now()
            if ExtendedKeyUsageOID.OCSP_SIGNING not in usages or not (
                signer.not_valid_before_utc <= now <= signer.not_valid_after_utc
            ):
                raise CertificateUnusable("signed by somebody who may not")
    key = signer.public_key()
    if isinstance(key, Ed25519PublicKey):
        key.verify(response.signature, response.tbs_response_bytes)
    elif isinstance(key, ec.EllipticCurvePublicKey) and response.signature_hash_algorithm:
        algorithm = ec.ECDSA(response.signature_hash_algorithm)
        key.verify(response.signature, response.tbs_response_bytes, algorithm)
    else:
        raise CertificateUnusable("a responder's key of another kind")


def answer_for(
    authority: DevelopmentAuthority,
    certificate: x509.Certificate,
    now: datetime,
    *,
    revoked_at: datetime | None = None,
    lifetime: timedelta = timedelta(minutes=10),
) -> bytes:
    """Sign a response as the development authority (DER)."""
    status = ocsp.OCSPCertStatus.GOOD if revoked_at is None else ocsp.OCSPCertStatus.REVOKED
    built = ocsp.OCSPResponseBuilder().add_response(
        cert=certificate,
        issuer=authority.certificate,
        algorithm=hashes.SHA256(),
        cert_status=status,
        this_update=now,
        next_update=now + lifetime,
        revocation_time=revoked_at,
        revocation_reason=None,
    )
    responder = (ocsp.OCSPResponderEncoding.HASH, authority.certificate)
    signed = built.responder_id(*responder).sign(authority.key, hash_for(authority.key))
    return signed.public_bytes(serialization.Encoding.DER)


class OcspCache:
    """What is known of certificates. Revocations stay; other answers age, on the node's clock."""

    def __init__(self, directory: Path, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the monotonic clock: an answer's age is the wall clock's only once."""
        self._directory = directory
        self._now_ms = now_ms
        self._read: dict[Path, tuple[int, int]] = {}
        self._made_ms: dict[Subject, int] = {}
        self._ends: dict[Subject, datetime] = {}
        self._revoked: set[Subject] = set()

    @property
    def is_used(self) -> bool:
        return self._directory.is_dir()

    def look(self, authorities: Sequence[x509.Certificate]) -> None:
        """Read what is new; what cannot be believed is said once and says nothing."""
        for path in sorted(self._directory.glob("*.der"))[:_FILES_MAX]:
            try:
                found = path.stat()
                stamp = (found.st_mtime_ns, found.st_size)
                if self._read.get(path) == stamp or found.st_size > _RESPONSE_BYTES_MAX:
                    continue
                self._read[path] = stamp
                self.learn(read_answer(path.read_bytes(), authorities), utc_now())
            except (CertificateUnusable, OSError) as error:
                journal.warning("%s is not used: %s", path.name, error)

    def learn(self, answer: OcspAnswer, now: datetime) -> None:
        """Take an answer; an older one than what is known changes nothing."""
        if answer.is_revoked:
            self._revoked.add(answer.subject)
        if answer.ends_at is not None and now >= answer.ends_at:
            return
        age_ms = max(0, (now - answer.made_at) // timedelta(milliseconds=1))
        made_ms = self._now_ms() - age_ms
        if made_ms >= self._made_ms.get(answer.subject, made_ms):
            self._made_ms[answer.subject] = made_ms
            self._ends[answer.subject] = answer.ends_at or datetime.max.replace(tzinfo=UTC)

    def is_revoked(self, subject: Subject) -> bool:
        return subject in self._revoked

    def age_ms(self, subject: Subject) -> int | None:
        """Say how old the answer about a certificate is; None: there is none that still holds."""
        made_ms = self._made_ms.get(subject)
        if made_ms is None or utc_now() >= self._ends[subject]:
            return None
        return self._now_ms() - made_ms

    def newest_age_ms(self) -> int | None:
        """Say how long ago the responder said anything; None: never."""
        ages = [age for age in map(self.age_ms, self._made_ms) if age is not None]
        return min(ages, default=None)


class OcspAsking:
    """Asks a responder about certificates, in a thread, and puts its answers into the cache."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._directory = directory
        self._running: threading.Thread | None = None
        self._complaint = ""

    def ask(self, wanted: Iterable[tuple[x509.Certificate, int]]) -> None:
        """Ask about these (issuer, serial number), unless it is asking already."""
        asked = tuple(wanted)
        if not asked or (self._running is not None and self._running.is_alive()):
            return
        self._running = threading.Thread(target=self._run, args=(asked,), daemon=True)
        self._running.start()

    def _run(self, asked: tuple[tuple[x509.Certificate, int], ...]) -> None:
        for issuer, serial in asked:
            try:
                self._keep(issuer, serial)
            except (OSError, ValueError, http.client.HTTPException, CertificateUnusable) as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    journal.warning("the OCSP responder does not answer: %s", error)

    def _keep(self, issuer: x509.Certificate, serial: int) -> None:
        content = request_for(issuer, serial)
        headers = {"Content-Type": "application/ocsp-request"}
        request = urllib.request.Request(self._url, content, headers)  # noqa: S310  # http(s) only
        with urllib.request.urlopen(request, timeout=_SECONDS_MAX) as response:  # noqa: S310
            answer = response.read(_RESPONSE_BYTES_MAX)
        read_answer(answer, [issuer])
        self._directory.mkdir(mode=0o755, exist_ok=True)
        name = f"{fingerprint_of(issuer).hex()[:16]}-{serial:x}.der"
        replace_file(self._directory / name, answer, 0o644)


def request_for(issuer: x509.Certificate, serial: int) -> bytes:
    """Write the question about a certificate (DER)."""
    name, key = _hashes(issuer, hashes.SHA256())
    built = ocsp.OCSPRequestBuilder().add_certificate_by_hash(name, key, serial, hashes.SHA256())
    return built.build().public_bytes(serialization.Encoding.DER)
