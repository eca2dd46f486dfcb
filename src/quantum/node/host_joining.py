"""A host that joins by a token: what the operator's side gives it, and what it writes down."""

from __future__ import annotations

from collections.abc import Callable
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file, read_cluster_file
from clustor.runtime.data_directory import write_durably
from clustor.runtime.errors import CertificateUnusable, DataDirectoryRefused
from clustor.runtime.keys.snapshot_key import SIGNER_FILE, create_signer, load_signer, public_hex
from clustor.runtime.keys.store import KEK_FILE, KEYS_DIRECTORY
from clustor.runtime.peers.address import Address
from clustor.runtime.pki.enrolment import EnrolmentAnswer, NewHost, enrol_host
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    NodeId,
    host_name,
    load_authority,
    sign_key,
    utc_now,
)
from clustor.security import NodeRole
from quantum.edge.tls_development import (
    SERVER_FILE,
    SERVER_LIFETIME,
    TRUST_DOMAIN,
    pki_directory,
)
from quantum.node.host_folders import (
    CLIENT_PKI,
    CONFIG_FILE,
    JOIN_DIRECTORY,
    HostPlace,
    request_server,
)
from quantum.node.host_toml import host_toml
from quantum.tenants.broker_file import BROKER_FILE, read_broker_file

_LOCK_FILE: Final = "hosts.lock"


def taking_hosts(office: Path) -> Callable[[NewHost], dict[str, str]]:
    """Return who lists hosts in the operator's folder, and gives them what they need.

    The same host again (its answer was lost) is listed once. Raises DataDirectoryRefused and
    CertificateUnusable.
    """

    def take(host: NewHost) -> dict[str, str]:
        with (office / _LOCK_FILE).open("ab") as lock:
            flock(lock, LOCK_EX)
            cluster = read_cluster_file(office / CLUSTER_FILE)
            known = {entry.node_id: entry for entry in (*cluster.nodes, *cluster.removed)}
            there = known.get(host.entry.node_id)
            if there is not None and there != host.entry:
                raise DataDirectoryRefused("another host has this number", node=there.node_id)
            if there is None:
                fresh = encode_cluster_file(cluster.with_node(host.entry))
                write_durably(office / CLUSTER_FILE, fresh, 0o644)
        authority = load_authority(pki_directory(office), TRUST_DOMAIN)
        return {
            CLUSTER_FILE: (office / CLUSTER_FILE).read_text(),
            BROKER_FILE: (office / BROKER_FILE).read_text(),
            SERVER_FILE: _server_certificate(office, host),
            AUTHORITY_FILE: authority.bundle_pem.decode(),
            CONFIG_FILE: read_broker_file(office).tenants[0].name,
        }

    return take


def _server_certificate(office: Path, host: NewHost) -> str:
    """Sign what a host shows to clients, for the names that it was let in with."""
    try:
        request = x509.load_pem_x509_csr(host.server_request_pem.encode())
    except ValueError as error:
        raise CertificateUnusable("the host's request cannot be read") from error
    key = request.public_key()
    if not request.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
        raise CertificateUnusable("the host's request proves no key")
    names = dict.fromkeys((host.entry.host, *host.names))
    certificate = sign_key(
        load_authority(pki_directory(office), TRUST_DOMAIN),
        key,
        f"Quantum {host.entry.zone}",
        [host_name(each) for each in names],
        [ExtendedKeyUsageOID.SERVER_AUTH],
        now=utc_now(),
        lifetime=SERVER_LIFETIME,
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


async def join_host(
    server: Address, token: str, node: NodeId, place: HostPlace, *, out: Path, data: Path
) -> Path:
    """Show a token, and write this host's folder; return its `quantum.toml`.

    Keys are made here and never leave. When an answer was lost, the same call goes on. Raises
    EnrolmentRefused, NodeError and OSError.
    """
    out.mkdir(parents=True, mode=0o700, exist_ok=True)
    if (out / CONFIG_FILE).exists():
        raise DataDirectoryRefused("this host has its folder already", directory=str(out))
    keys = out / KEYS_DIRECTORY
    signer = load_signer(keys) if (keys / SIGNER_FILE).exists() else create_signer(keys)
    entry = place.entry(node, public_hex(signer), founder=False)
    request = request_server(out / CLIENT_PKI, place)
    host = NewHost(entry, place.names, request)
    answer = await enrol_host(server, token, node, NodeRole.VOTER, out, host=host)
    _keep(answer, out)
    (keys / KEK_FILE).replace(out / KEK_FILE)  # it opens the ring: not beside it
    lines = {
        "data": str(data),
        "tenant": answer.files[CONFIG_FILE],
        "kek": f"file:{KEK_FILE}",
    }
    text = host_toml(answer.cluster_id, entry, place.ports, lines)
    write_durably(out / CONFIG_FILE, text.encode())
    return out / CONFIG_FILE


def _keep(answer: EnrolmentAnswer, out: Path) -> None:
    if not answer.files:
        raise CertificateUnusable(
            "that server takes no hosts: it runs where a cluster shares disks"
        )
    join, client = out / JOIN_DIRECTORY, out / CLIENT_PKI
    join.mkdir(mode=0o700, exist_ok=True)
    for name in (CLUSTER_FILE, BROKER_FILE):
        write_durably(join / name, answer.files[name].encode(), 0o644)
    for name in (SERVER_FILE, AUTHORITY_FILE):
        write_durably(client / name, answer.files[name].encode(), 0o644)
