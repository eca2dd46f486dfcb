"""What can be told of a host's file before its node is started: each finding is one sentence.

The checks read files and ask the key's source; nothing is written, and no port is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from clustor.log.errors import LogError
from clustor.runtime.cluster_file import CLUSTER_FILE, read_cluster_file
from clustor.runtime.errors import NodeError
from clustor.runtime.keys.store import load_keyring
from clustor.runtime.pki.certificate_files import load_certificate
from clustor.runtime.pki.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    host_name,
    own_identity,
    server_context,
)
from quantum.archive import ArchiveError, ArchiveMisuse, open_objects
from quantum.config import HostSettings
from quantum.edge.errors import EdgeError
from quantum.edge.tls_development import SERVER_FILE, SERVER_KEY_FILE
from quantum.node.host import host_doors, kek_of, require_apart
from quantum.node.listeners import password_policy
from quantum.node.server_certificates import HostCertificates
from quantum.node.up import require_archive

_ENDS_SOON: Final = timedelta(days=10)


@dataclass(frozen=True, slots=True)
class HostFinding:
    """One thing that is wrong with a host's file, or with what it names."""

    key: str
    problem: str
    is_warning: bool = False


def check_host(settings: HostSettings, now: datetime) -> list[HostFinding]:
    """Say what would keep the node from starting, and what would trouble it later."""
    return [
        *_tried("keys", lambda: require_apart(settings)),
        *_tried("kek", lambda: _open_ring(settings)),
        *_tried("pki", lambda: _check_node(settings)),
        *_tried("client_pki", lambda: _check_server(settings)),
        *_tried("client_auth", lambda: password_policy(host_doors(settings))),
        *_tried("archive", lambda: _check_archive(settings)),
        *_tried("join", lambda: _check_listed(settings)),
        *_open_to_others(settings),
        *_aged(settings, now),
        *_unnamed(settings),
    ]


def _tried(key: str, check: Callable[[], object]) -> Iterator[HostFinding]:
    try:
        check()
    except (NodeError, EdgeError, LogError, ArchiveError, OSError) as error:
        yield HostFinding(key, str(error))


def _open_ring(settings: HostSettings) -> None:
    load_keyring(settings.keys, read_kek=kek_of(settings, os.environ))


def _check_node(settings: HostSettings) -> None:
    server_context(settings.pki)
    found = own_identity(settings.pki)
    if (found.cluster_id, found.node_id) != (settings.cluster, settings.node):
        raise OSError(f"its certificate is that of node {found.node_id} of {found.cluster_id}")


def _check_server(settings: HostSettings) -> None:
    if settings.mqtts is not None or settings.wss is not None:
        policy = host_doors(settings).tls
        HostCertificates(settings.client_pki).prepare(frozenset(), policy, own_records=False)


def _check_archive(settings: HostSettings) -> None:
    require_archive(settings)
    if settings.archive is not None:
        try:
            open_objects(settings.archive)
        except ArchiveMisuse as error:
            raise OSError(str(error)) from error


def _check_listed(settings: HostSettings) -> None:
    """The description that the next start reads must know this node, by where it says it is."""
    known = settings.data / CLUSTER_FILE
    cluster = read_cluster_file(known if known.exists() else settings.join / CLUSTER_FILE)
    entry = cluster.node(own_identity(settings.pki).node_id)
    said = settings.advertised()
    if str(entry.peer) != said["peer"]:
        raise OSError(f"the cluster knows this node at {entry.peer}, the file says {said['peer']}")


def _open_to_others(settings: HostSettings) -> Iterator[HostFinding]:
    """Keys are for their owner alone."""
    kind, _, rest = settings.kek.partition(":")
    files = {
        "pki": settings.pki / KEY_FILE,
        "client_pki": settings.client_pki / SERVER_KEY_FILE,
        **({"kek": Path(rest)} if kind == "file" else {}),
    }
    for key, file in files.items():
        if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield HostFinding(key, f"{file} can be read by others: chmod 600", is_warning=True)


def _aged(settings: HostSettings, now: datetime) -> Iterator[HostFinding]:
    for key, file in (
        ("pki", settings.pki / CERTIFICATE_FILE),
        ("pki", settings.pki / AUTHORITY_FILE),
        ("client_pki", settings.client_pki / SERVER_FILE),
    ):
        certificate = _certificate(file)
        if certificate is not None and certificate.not_valid_after_utc <= now + _ENDS_SOON:
            ends = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
            ended = certificate.not_valid_after_utc <= now
            yield HostFinding(key, f"{file} ends {ends}: renew it", is_warning=not ended)


def _unnamed(settings: HostSettings) -> Iterator[HostFinding]:
    """Clients go where they are told to: the certificate must be for that name."""
    certificate = _certificate(settings.client_pki / SERVER_FILE)
    if certificate is None:
        return
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    for listener, place in settings.advertised().items():
        host = place.rpartition(":")[0].removeprefix("[").removesuffix("]")
        if listener not in ("peer", "admin") and host_name(host) not in set(names):
            problem = f"clients are told to go to {host}, which the certificate is not for"
            yield HostFinding("client_pki", problem, is_warning=True)
            return


def _certificate(file: Path) -> x509.Certificate | None:
    try:
        return load_certificate(file)
    except NodeError:
        return None  # said by the check of its folder
