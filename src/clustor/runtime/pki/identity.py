"""Who a node is to its peers: an authority for development, node certificates, TLS contexts.

A certificate names its node by one SPIFFE URI, `spiffe://<cluster>/node/<id>` (clustor §12.1).
Host names say nothing here: a peer is believed for its URI and its authority alone, and both
sides of every connection are checked, under TLS 1.3.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NewType, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clustor.runtime.errors import (
    CertificateUnreadable,
    CertificateUnusable,
    PeerCertificateExpired,
    PeerCertificateRevoked,
    PeerIsAnotherNode,
    PeerOfAnotherCluster,
    PeerRefused,
    PeerUntrusted,
    PeerWithoutIdentity,
)
from clustor.runtime.peers.tls_suites import prefer_own_suites
from clustor.runtime.pki.certificate_files import (
    PrivateKey,
    bundle_pem,
    certificate_pem,
    key_pem,
    load_certificate,
    load_certificates,
    load_key,
    replace_file,
    write_new,
)
from clustor.runtime.pki.certificates import read_certificate

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | Ed25519PublicKey
ClusterId = NewType("ClusterId", str)
NodeId = NewType("NodeId", int)

PKI_DIRECTORY: Final = "pki"
AUTHORITY_FILE: Final = "ca.pem"
AUTHORITY_KEY_FILE: Final = "ca.key"
CERTIFICATE_FILE: Final = "node.pem"
KEY_FILE: Final = "node.key"
REVOCATION_FILE: Final = "crl.pem"
"""What the authority has revoked; where the file is, every handshake asks it."""

GLASS_FILE: Final = "break-glass.pem"
"""Authorities of break-glass certificates, and their lists; the admin port alone believes them."""

AUTHORITY_LIFETIME: Final = timedelta(days=365)
# Beyond a day, below which clustor §12.1 demands a fresh revocation feed; short all the same.
NODE_LIFETIME: Final = timedelta(days=30)
_RENEW_BEFORE: Final = timedelta(days=10)
ISSUING_SKEW: Final = timedelta(minutes=5)
"""So much before now a certificate begins: clocks differ."""
_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")

NODE_USAGES: Final = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]

_GENERATION: Final = re.compile(r"(?: ([1-9][0-9]{0,3}))?")
_CLUSTER: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SPIFFE: Final = re.compile(rf"spiffe://({_CLUSTER.pattern})/node/([1-9][0-9]{{0,18}})")

# OpenSSL's X509_V_ERR_… numbers, as `ssl` reports them.
_OUT_OF_TIME: Final = frozenset({9, 10})
_REVOKED: Final = frozenset({23})
_UNKNOWN_AUTHORITY: Final = frozenset({2, 7, 18, 19, 20, 21})


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What a certificate says about its owner."""

    cluster_id: ClusterId
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class DevelopmentAuthority:
    """A development authority: it signs the certificates of one cluster's nodes."""

    cluster_id: ClusterId
    certificate: x509.Certificate
    key: PrivateKey
    others: tuple[x509.Certificate, ...] = ()
    """Other authorities that are trusted beside it: while one takes the place of another."""

    @property
    def bundle_pem(self) -> bytes:
        """What those who trust this authority are given; it stands first."""
        return bundle_pem((self.certificate, *self.others))


@dataclass(frozen=True, slots=True)
class Issued:
    """A new certificate and its key, in PEM."""

    certificate_pem: bytes
    key_pem: bytes
    not_after: datetime


def cluster_id(name: str) -> ClusterId:
    """Check a cluster's name: one DNS label in small letters, as SPIFFE wants it."""
    if not _CLUSTER.fullmatch(name):
        raise CertificateUnusable("a cluster's name is one DNS label in small letters", name=name)
    return ClusterId(name)


def spiffe_uri(cluster: ClusterId, node: NodeId) -> str:
    """Return the name under which a node is known to its peers."""
    return f"spiffe://{cluster}/node/{node}"


def create_authority(directory: Path, cluster: ClusterId, now: datetime) -> DevelopmentAuthority:
    """Make the authority of a new cluster in `directory`. What is there is never replaced."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    made = new_authority(cluster, now)
    write_new(directory / AUTHORITY_KEY_FILE, key_pem(made.key), 0o600)
    write_new(directory / AUTHORITY_FILE, made.bundle_pem, 0o644)
    return made


def new_authority(cluster: ClusterId, now: datetime, generation: int = 1) -> DevelopmentAuthority:
    """Make an authority for the caller to keep. Each generation of a cluster has its own name:
    OpenSSL looks for issuers by name, and takes the first that fits."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(_authority_name(cluster, generation))
    certificate = (
        _unsigned(name, name, key.public_key(), now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return DevelopmentAuthority(cluster, certificate, key)


def new_intermediate(
    authority: DevelopmentAuthority, key: PublicKey, name: str, now: datetime, lifetime: timedelta
) -> x509.Certificate:
    """Sign for an authority that in turn signs for callers, and for nobody who is called."""
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return (
        _unsigned(_name(name), authority.certificate.subject, key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority.key, hash_for(authority.key))
    )


def generation_of(certificate: x509.Certificate, cluster: ClusterId) -> int | None:
    """Return the number of a development authority; None: it is another cluster's, or none."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(found[0].value) if found else ""
    number = _GENERATION.fullmatch(name.removeprefix(_authority_name(cluster, 1)))
    return None if number is None or not name.startswith(cluster) else int(number[1] or 1)


def _authority_name(cluster: ClusterId, generation: int) -> str:
    first = f"{cluster} development authority"
    return first if generation == 1 else f"{first} {generation}"


def load_authority(directory: Path, cluster: ClusterId) -> DevelopmentAuthority:
    """Read the authority that `create_authority` made for this cluster."""
    bundle, key_file = directory / AUTHORITY_FILE, directory / AUTHORITY_KEY_FILE
    return read_authority(bundle, key_file, cluster)


def read_authority(bundle: Path, key_file: Path, cluster: ClusterId) -> DevelopmentAuthority:
    """Read an authority whose certificate stands first in a bundle."""
    certificate, *others = load_certificates(bundle)
    key = load_key(key_file)
    if generation_of(certificate, cluster) is None:
        raise CertificateUnusable("an authority of another cluster", directory=str(bundle.parent))
    if certificate.public_key() != key.public_key():
        raise CertificateUnusable(
            "the authority's key is not its certificate's: was a rollover interrupted?",
            directory=str(bundle.parent),
        )
    return DevelopmentAuthority(cluster, certificate, key, tuple(others))


def issue_node(
    authority: DevelopmentAuthority,
    node: NodeId,
    directory: Path,
    now: datetime,
    *,
    lifetime: timedelta = NODE_LIFETIME,
    hosts: tuple[str, ...] = _LOOPBACK_HOSTS,
) -> None:
    """Give a node a new key and certificate in `directory`, in the place of older ones."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    issued = issue_certificate(
        authority,
        f"{authority.cluster_id} node {node}",
        node_names(authority, node, hosts),
        NODE_USAGES,
        now=now,
        lifetime=lifetime,
    )
    replace_file(directory / KEY_FILE, issued.key_pem, 0o600)
    replace_file(directory / CERTIFICATE_FILE, issued.certificate_pem, 0o644)
    replace_file(directory / AUTHORITY_FILE, authority.bundle_pem, 0o644)


def node_names(
    authority: DevelopmentAuthority, node: NodeId, hosts: tuple[str, ...] = _LOOPBACK_HOSTS
) -> list[x509.GeneralName]:  # fmt: skip
    """Return the names that a node's certificate has."""
    uri = x509.UniformResourceIdentifier(spiffe_uri(authority.cluster_id, node))
    return [uri, *(host_name(host) for host in hosts)]


def issue_certificate(
    authority: DevelopmentAuthority,
    common_name: str,
    names: list[x509.GeneralName],
    usages: list[x509.ObjectIdentifier],
    *,
    now: datetime,
    lifetime: timedelta,
    skew: timedelta = ISSUING_SKEW,
) -> Issued:
    """Sign a certificate for a new key, for the caller to keep."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = sign_key(
        authority,
        key.public_key(),
        common_name,
        names,
        usages,
        now=now,
        lifetime=lifetime,
        skew=skew,
    )
    return Issued(certificate_pem(certificate), key_pem(key), certificate.not_valid_after_utc)


def sign_key(
    authority: DevelopmentAuthority,
    key: ec.EllipticCurvePublicKey,
    common_name: str,
    names: list[x509.GeneralName],
    usages: list[x509.ObjectIdentifier],
    *,
    now: datetime,
    lifetime: timedelta,
    skew: timedelta = ISSUING_SKEW,
) -> x509.Certificate:
    """Sign a certificate for a key whose private half somebody else keeps."""
    issuer = authority.certificate.subject
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return (
        _unsigned(_name(common_name), issuer, key, now, lifetime, skew)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority.key, hash_for(authority.key))
    )


def hash_for(key: PrivateKey) -> hashes.SHA256 | None:
    """Return what a key signs the digest of; Ed25519 takes the message itself."""
    return None if isinstance(key, Ed25519PrivateKey) else hashes.SHA256()


def needs_certificate(directory: Path, now: datetime) -> bool:
    """Say whether a node's certificate is missing, or soon to end."""
    if not (directory / CERTIFICATE_FILE).exists() or not (directory / KEY_FILE).exists():
        return True
    ends = load_certificate(directory / CERTIFICATE_FILE).not_valid_after_utc
    return now >= ends - _RENEW_BEFORE


def own_identity(directory: Path) -> PeerIdentity:
    """Return who the certificate in `directory` says this node is."""
    certificate = load_certificate(directory / CERTIFICATE_FILE)
    try:
        return identity_of(certificate.public_bytes(serialization.Encoding.DER))
    except PeerWithoutIdentity as error:
        raise CertificateUnusable("our own certificate names no node") from error


def server_context(directory: Path) -> ssl.SSLContext:
    """Return the TLS context for connections that peers open to this node."""
    context = _context(directory, ssl.PROTOCOL_TLS_SERVER)
    # A resumed session is not asked for its certificate again, so it could outlive it.
    context.num_tickets = 0
    return context


def admin_context(directory: Path) -> ssl.SSLContext:
    """Return the TLS context of the admin port.

    Who shows no certificate gets an answer that says so, and is on record; who shows a false one
    gets no connection at all.
    """
    context = server_context(directory)
    context.verify_mode = ssl.CERT_OPTIONAL
    glass = directory / GLASS_FILE
    if glass.exists():
        # Alone here: below the authority of nodes, whose path length is 0, nobody believes them.
        _load(context, glass)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def _load(context: ssl.SSLContext, bundle: Path) -> None:
    try:
        context.load_verify_locations(bundle)
    except (OSError, ssl.SSLError) as error:
        raise CertificateUnusable("cannot read a bundle", file=str(bundle), cause=error) from error


def client_context(directory: Path) -> ssl.SSLContext:
    """Return the TLS context for connections that this node opens to peers."""
    return _context(directory, ssl.PROTOCOL_TLS_CLIENT)


def identity_of(certificate_der: bytes | None) -> PeerIdentity:
    """Read the one SPIFFE identity of a certificate that TLS has already verified."""
    if certificate_der is None:
        raise PeerWithoutIdentity("the peer showed no certificate")
    try:
        uris = read_certificate(certificate_der).uris
    except CertificateUnreadable as error:
        raise PeerWithoutIdentity("the peer's certificate cannot be read", **error.facts) from error
    found = _SPIFFE.fullmatch(uris[0]) if len(uris) == 1 else None
    if found is None:
        raise PeerWithoutIdentity("the peer's certificate names no node", uris=len(uris))
    return PeerIdentity(ClusterId(found[1]), NodeId(int(found[2])))


def check_peer(
    certificate_der: bytes | None, cluster: ClusterId, expected: NodeId | None
) -> NodeId:
    """Return which node the peer is, or raise PeerRefused; None expects any node."""
    identity = identity_of(certificate_der)
    if identity.cluster_id != cluster:
        raise PeerOfAnotherCluster(
            "the peer belongs to another cluster", peer=identity.cluster_id, ours=cluster
        )
    if expected is not None and identity.node_id != expected:
        raise PeerIsAnotherNode(
            "the peer is another node", peer=identity.node_id, expected=expected
        )
    return identity.node_id


def refusal_of(error: ssl.SSLError) -> PeerRefused:
    """Name why a TLS handshake failed."""
    code = getattr(error, "verify_code", None)
    reason = str(getattr(error, "verify_message", "") or error.reason or error)
    if code in _OUT_OF_TIME:
        return PeerCertificateExpired("the peer's certificate is out of its time", tls=reason)
    if code in _REVOKED:
        return PeerCertificateRevoked("the peer's certificate was revoked", tls=reason)
    if code in _UNKNOWN_AUTHORITY:
        return PeerUntrusted("the peer's certificate is of an unknown authority", tls=reason)
    return PeerRefused("the TLS handshake failed", tls=reason)


def _context(directory: Path, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    prefer_own_suites(context)
    context.check_hostname = False  # the SPIFFE URI is the name; see `check_peer`
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(directory / CERTIFICATE_FILE, directory / KEY_FILE)
        context.load_verify_locations(directory / AUTHORITY_FILE)
        if (directory / REVOCATION_FILE).exists():
            context.load_verify_locations(directory / REVOCATION_FILE)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    except (OSError, ssl.SSLError) as error:
        raise CertificateUnusable(
            "our own certificate cannot be used", directory=str(directory), cause=error
        ) from error
    return context


def _unsigned(  # noqa: PLR0917  # what stands in every certificate
    subject: x509.Name,
    issuer: x509.Name,
    key: PublicKey,
    now: datetime,
    lifetime: timedelta,
    skew: timedelta = ISSUING_SKEW,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - skew)
        .not_valid_after(now + lifetime)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def host_name(host: str) -> x509.GeneralName:
    """Return a host's name or address as a certificate holds it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def utc_now() -> datetime:
    """Return the wall clock, for certificates."""
    return datetime.now(UTC)
