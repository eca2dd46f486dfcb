"""Who is still believed: the authorities of a trust bundle, and what they have revoked.

A handshake asks OpenSSL. A connection that is open outlives its handshake, so it remembers what
was shown (`Shown`), and `Trust` says of that whether it would be believed now: when an authority
leaves the bundle, a list grows or a certificate ends, its connections can be found.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NewType

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from clustor.runtime.pki.certificate_files import load_certificates
from clustor.runtime.pki.certificates import read_certificate
from clustor.runtime.pki.revocation import lists_of

Fingerprint = NewType("Fingerprint", bytes)
"""SHA-256 of a certificate (DER)."""

_DER: Final = 2  # OpenSSL's name for it, as `_ssl` has it
_ANCHOR_IS_ISSUER: Final = 2  # certificates in such a chain


class Disbelief(StrEnum):
    """Why a certificate that was believed is not believed now."""

    REVOKED = "its certificate was revoked"
    AUTHORITY = "its authority is trusted no more"
    EXPIRED = "its certificate has ended"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the other end has shown in its handshake, as far as it matters later."""

    serial: int
    not_after_ms: int
    issuer: Fingerprint
    """Who signed the certificate."""
    anchor: Fingerprint
    """The authority of our bundle in which its chain ends."""
    lifetime_ms: int = 0
    """From its beginning to its end."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom to believe. Pure: what it knows was read when it was made."""

    anchors: frozenset[Fingerprint]
    revoked: Mapping[Fingerprint, frozenset[int]] = field(default_factory=dict)
    """Serial numbers, by who issued them."""
    revoked_of_any: frozenset[int] = frozenset()
    """Serial numbers that somebody revoked who did not say whose they are."""

    def disbelief(self, shown: Shown, now_ms: int) -> Disbelief | None:
        """Say why a certificate is not believed now; None: it is."""
        if shown.serial in self.revoked.get(shown.issuer, ()):
            return Disbelief.REVOKED
        if shown.serial in self.revoked_of_any:
            return Disbelief.REVOKED
        if shown.anchor not in self.anchors:
            return Disbelief.AUTHORITY
        return Disbelief.EXPIRED if now_ms >= shown.not_after_ms else None


def fingerprint_of(certificate: x509.Certificate) -> Fingerprint:
    return _digest(certificate.public_bytes(Encoding.DER))


def _digest(certificate_der: bytes) -> Fingerprint:
    return Fingerprint(hashlib.sha256(certificate_der).digest())


def trust_in(
    authorities: Iterable[x509.Certificate],
    lists: Path | None = None,
    revoked_of_any: Iterable[int] = (),
) -> Trust:
    """Trust these authorities, but for what the lists in a file revoke.

    Raises CertificateUnusable, also for a list that none of them signed.
    """
    known = tuple(authorities)
    revoked = {
        fingerprint_of(issuer): frozenset(entry.serial_number for entry in found)
        for issuer, found in (lists_of(lists, known) if lists is not None else ())
    }
    anchors = frozenset(map(fingerprint_of, known))
    return Trust(anchors, revoked, frozenset(revoked_of_any))


def read_trust(bundle: Path, lists: Path) -> Trust:
    """Read a trust bundle and the revocation lists beside it, if there are any."""
    return trust_in(load_certificates(bundle), lists if lists.exists() else None)


class ChainReader:
    """Says what the other end has shown; an authority is one object, whomever it vouches for."""

    def __init__(self) -> None:
        self._anchors: dict[bytes, Fingerprint] = {}

    def shown_by(self, tls: ssl.SSLObject) -> Shown | None:
        """Return what a finished handshake has believed; None: nothing was shown.

        Raises CertificateUnreadable.
        """
        chain = verified_chain(tls)
        if not chain:
            return None
        leaf = read_certificate(chain[0])
        anchor = _digest(chain[-1])
        anchor = self._anchors.setdefault(anchor, anchor)
        # Not kept: whoever has a root can have as many authorities below it as he likes.
        issuer = anchor if len(chain) <= _ANCHOR_IS_ISSUER else _digest(chain[1])
        return Shown(leaf.serial, leaf.not_after_ms, issuer, anchor, leaf.lifetime_ms)


def verified_chain(tls: ssl.SSLObject) -> list[bytes]:
    """Return the chain that OpenSSL has verified (DER): the certificate first, its root last."""
    # `SSLObject.get_verified_chain` is public from Python 3.13 on; the object below has it here.
    below: Any = getattr(tls, "_sslobj", None)
    if below is None:
        return []
    found = below.get_verified_chain() or ()
    return [each.public_bytes(_DER) for each in found]
