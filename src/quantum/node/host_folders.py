"""The folders of a production cluster: one for each host, ready to be copied there.

operator/    for who runs the cluster: its description, its authorities, the newest key ring. Its
             shape is that of a development cluster's directory, so the same commands read it
<host>/      quantum.toml, pki/, client-pki/, keys/, the key that opens them, join/

A host's folder holds no authority's key, and the operator's no node's. With an authority of the
operator's own, signing requests stand where certificates would.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clustor.log.keyfile import parse_kek
from clustor.runtime.cluster_file import (
    CLUSTER_FILE,
    ClusterFile,
    NodeEntry,
    encode_cluster_file,
    read_cluster_file,
)
from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.hardening import Hardening
from clustor.runtime.keys.key_service import KeyService
from clustor.runtime.keys.snapshot_key import create_signer, public_hex
from clustor.runtime.keys.store import (
    KEK_FILE,
    KEYRING_FILE,
    KEYS_DIRECTORY,
    STAGED_FILE,
    create_keyring,
)
from clustor.runtime.pki.certificate_files import key_pem, replace_file
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    PKI_DIRECTORY,
    ClusterId,
    DevelopmentAuthority,
    NodeId,
    create_authority,
    host_name,
    issue_certificate,
    issue_node,
    load_authority,
    spiffe_uri,
)
from quantum.edge.tls_development import (
    SERVER_FILE,
    SERVER_KEY_FILE,
    SERVER_LIFETIME,
    TRUST_DOMAIN,
    pki_directory,
)
from quantum.node.host_toml import host_toml
from quantum.tenants.broker_file import BROKER_FILE, BrokerFile, TenantEntry

OFFICE: Final = "operator"
CONFIG_FILE: Final = "quantum.toml"
CLIENT_PKI: Final = "client-pki"
JOIN_DIRECTORY: Final = "join"
WRAPPED_FILE: Final = "kek.wrapped"
OPERATOR_FILE: Final = "operator.pem"


@dataclass(frozen=True, slots=True)
class HostPlace:
    """A host as the operator names it: where it is, and on which ports."""

    name: str
    host: str
    peer_port: int = 7001
    admin_port: int = 9080
    ports: Mapping[str, int] = field(default_factory=lambda: {"mqtts": 8883, "wss": 8084})
    names: tuple[str, ...] = ()
    """Further names that clients may call it by."""
    zone: str = ""

    def entry(self, node: NodeId, signing_key: str, *, founder: bool) -> NodeEntry:
        """Describe it as a node of the cluster."""
        clients = {name: f"{self.host}:{port}" for name, port in self.ports.items()}
        zone = self.zone or self.name
        return NodeEntry(
            node, self.host, self.peer_port, self.admin_port, signing_key, founder, zone, clients
        )


@dataclass(frozen=True, slots=True)
class FoundingPlan:
    """What a new cluster is like."""

    cluster: ClusterId
    tenant: TenantEntry
    data: Path = Path("/var/lib/quantum")
    groups: int = 1
    segment_bytes: int = 256 << 20
    patience: int = 1
    disk_override: str = ""
    archive: str | None = None
    own_authority: bool = False
    """Whether certificates are signed elsewhere: then requests are written."""
    service: KeyService | None = None
    """Who wraps the key of the ring; None: each host has it in a file."""
    service_lines: Mapping[str, str] = field(default_factory=dict)
    """What a host's file says of that service."""


def found_cluster(
    out: Path, places: Sequence[HostPlace], plan: FoundingPlan, now: datetime
) -> ClusterFile:
    """Make the folders of a new cluster. Raises DataDirectoryRefused where something is there."""
    if out.exists() and any(out.iterdir()):
        raise DataDirectoryRefused("the directory is not empty", directory=str(out))
    office = out / OFFICE
    office.mkdir(parents=True, mode=0o700)
    create_keyring(office)
    if not plan.own_authority:
        create_authority(office / PKI_DIRECTORY, plan.cluster, now)
        create_authority(pki_directory(office), TRUST_DOMAIN, now)
    entries = [
        place.entry(NodeId(number), _signer(out / place.name), founder=True)
        for number, place in enumerate(places, 1)
    ]
    cluster = ClusterFile(
        plan.cluster,
        plan.groups,
        tuple(entries),
        segment_bytes=plan.segment_bytes,
        birth_id=os.urandom(16).hex(),
        control_founders=tuple(entry.node_id for entry in entries),
        admin_tls=True,
        hardening=Hardening.REPORT,
        disk_override=plan.disk_override,
        patience=plan.patience,
        production=True,
    )
    write_durably(office / CLUSTER_FILE, encode_cluster_file(cluster), 0o644)
    broker = BrokerFile((plan.tenant,))
    write_durably(office / BROKER_FILE, msgspec.json.encode(broker) + b"\n", 0o644)
    _write_operator(office, plan, now)
    for place, entry in zip(places, entries, strict=True):
        write_host(office, out / place.name, place, entry, plan, now=now)
    return cluster


def add_host(office: Path, out: Path, place: HostPlace, plan: FoundingPlan, now: datetime) -> int:
    """Make the folder of one more host, and list it; the others learn of it by `add-node`.

    Raises DataDirectoryRefused.
    """
    if out.exists() and any(out.iterdir()):
        raise DataDirectoryRefused("the directory is not empty", directory=str(out))
    cluster = read_cluster_file(office / CLUSTER_FILE)
    entry = place.entry(cluster.next_node_id(), _signer(out), founder=False)
    write_durably(office / CLUSTER_FILE, encode_cluster_file(cluster.with_node(entry)), 0o644)
    write_host(office, out, place, entry, plan, now=now)
    return entry.node_id


def write_host(
    office: Path,
    out: Path,
    place: HostPlace,
    entry: NodeEntry,
    plan: FoundingPlan,
    *,
    now: datetime,
) -> None:
    """Write one host's folder; its `quantum.toml` last, so that its presence means all."""
    kek = _write_keys(office, out, plan)
    requests = plan.own_authority
    if requests:
        _request_node(out / PKI_DIRECTORY, plan.cluster, entry, place)
        request_server(out / CLIENT_PKI, place)
    else:
        authority = load_authority(office / PKI_DIRECTORY, plan.cluster)
        hosts = tuple(dict.fromkeys(("localhost", "127.0.0.1", place.host, *place.names)))
        issue_node(authority, entry.id, out / PKI_DIRECTORY, now, hosts=hosts)
        _issue_server(office, out / CLIENT_PKI, place, now)
    join = out / JOIN_DIRECTORY
    join.mkdir(mode=0o700, exist_ok=True)
    for name in (CLUSTER_FILE, BROKER_FILE):
        write_durably(join / name, (office / name).read_bytes(), 0o644)
    lines = {"data": str(plan.data), "tenant": plan.tenant.name, "kek": kek, **plan.service_lines}
    if plan.archive is not None:
        lines["archive"] = plan.archive
    text = host_toml(plan.cluster, entry, place.ports, lines)
    write_durably(out / CONFIG_FILE, text.encode(), 0o600)


def _signer(out: Path) -> str:
    return public_hex(create_signer(out / KEYS_DIRECTORY))


def _write_keys(office: Path, out: Path, plan: FoundingPlan) -> str:
    """Give a host the ring, and the key that opens it; say where its file finds that key."""
    source, keys = office / KEYS_DIRECTORY, out / KEYS_DIRECTORY
    for name in (KEYRING_FILE, STAGED_FILE):
        if (source / name).exists():
            write_durably(keys / name, (source / name).read_bytes())
    kek = (source / KEK_FILE).read_bytes()
    if plan.service is None:
        write_durably(out / KEK_FILE, kek)
        return f"file:{KEK_FILE}"
    sealed = plan.service.encrypt(parse_kek(kek.decode()))
    write_durably(out / WRAPPED_FILE, sealed.hex().encode() + b"\n")
    return f"kms:{WRAPPED_FILE}"


def _write_operator(office: Path, plan: FoundingPlan, now: datetime) -> None:
    """Let the operator be somebody to the admin ports."""
    identity = f"spiffe://{plan.cluster}/operator"
    name = x509.UniformResourceIdentifier(identity)
    if plan.own_authority:
        (office / PKI_DIRECTORY).mkdir(mode=0o700, exist_ok=True)
        _request(office / PKI_DIRECTORY, "operator", "operator", [name])
        return
    authority = load_authority(office / PKI_DIRECTORY, plan.cluster)
    issued = issue_certificate(
        authority,
        "operator",
        [name],
        [ExtendedKeyUsageOID.CLIENT_AUTH],
        now=now,
        lifetime=SERVER_LIFETIME,
    )
    file = office / PKI_DIRECTORY / OPERATOR_FILE
    replace_file(file, issued.certificate_pem + issued.key_pem, 0o600)


def _issue_server(office: Path, out: Path, place: HostPlace, now: datetime) -> None:
    authority: DevelopmentAuthority = load_authority(pki_directory(office), TRUST_DOMAIN)
    out.mkdir(mode=0o700, exist_ok=True)
    issued = issue_certificate(
        authority,
        f"Quantum {place.name}",
        [host_name(each) for each in _server_names(place)],
        [ExtendedKeyUsageOID.SERVER_AUTH],
        now=now,
        lifetime=SERVER_LIFETIME,
    )
    replace_file(out / SERVER_KEY_FILE, issued.key_pem, 0o600)
    replace_file(out / SERVER_FILE, issued.certificate_pem, 0o644)
    replace_file(out / AUTHORITY_FILE, authority.bundle_pem, 0o644)


def _server_names(place: HostPlace) -> tuple[str, ...]:
    return tuple(dict.fromkeys((place.host, *place.names)))


def _request_node(out: Path, cluster: ClusterId, entry: NodeEntry, place: HostPlace) -> None:
    names = [
        x509.UniformResourceIdentifier(spiffe_uri(cluster, entry.id)),
        *map(host_name, _server_names(place)),
    ]
    stem = Path(CERTIFICATE_FILE).stem
    assert Path(KEY_FILE).stem == stem
    _request(out, stem, f"{cluster} node {entry.node_id}", names)


def request_server(out: Path, place: HostPlace) -> str:
    """Write a new key for what a host shows to clients, and return the request to sign it."""
    names = [host_name(each) for each in _server_names(place)]
    return _request(out, Path(SERVER_FILE).stem, f"Quantum {place.name}", names)


def _request(out: Path, stem: str, common_name: str, names: Sequence[x509.GeneralName]) -> str:
    """Write a new key, and the request to sign it with these names; return the request."""
    out.mkdir(mode=0o700, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    replace_file(out / f"{stem}.key", key_pem(key), 0o600)
    pem = request.public_bytes(serialization.Encoding.PEM)
    replace_file(out / f"{stem}.csr", pem, 0o644)
    return pem.decode()
