"""A production node, as its `quantum.toml` says: `quantum node start`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from clustor.log.errors import KeyUnavailable
from clustor.runtime.admin.server import AdminServer
from clustor.runtime.cluster_file import CLUSTER_FILE, ClusterFile, read_cluster_file
from clustor.runtime.data_directory import SecretPlaces, write_durably
from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.hardening import Hardening
from clustor.runtime.keys.kek_source import (
    ReadKek,
    kek_in_file,
    kek_of_command,
    kek_of_service,
    read_once,
)
from clustor.runtime.keys.key_service import KeyService, access_from
from clustor.runtime.keys.store import KEYRING_FILE
from clustor.runtime.main import ListenPlaces, open_for_start, serve_node
from clustor.runtime.node import Node
from clustor.runtime.node_list import NodeListService
from clustor.runtime.peers.address import Address
from clustor.runtime.pki.identity import NodeId
from quantum.config import HostSettings
from quantum.edge.ports import Transport
from quantum.node.composition import BrokerPlan, References, open_broker
from quantum.node.kafka_serving import KafkaPlaces
from quantum.node.listeners import Doors
from quantum.node.server_certificates import HostCertificates
from quantum.node.service_notify import ServiceNotify
from quantum.node.up import (
    archive_entry,
    backups_entry,
    doors,
    mqtt_limits,
    require_archive,
    traces_entry,
)
from quantum.tenants.broker_file import BROKER_FILE, read_broker_file

Attach = Callable[[Node, AdminServer], object]

_TRANSPORTS: Final[dict[str, Transport]] = {"mqtts": "tls", "wss": "wss"}


def run_host(settings: HostSettings, attach: Attach | None = None) -> None:
    """Run the node of a host until it is told to stop; `attach` adds pages of rooms above.

    Raises NodeError, EdgeError, KeyUnavailable and what a replica refuses.
    """
    require_apart(settings)
    require_archive(settings)
    cluster = take_up(settings)
    # Before anything is hardened: afterwards no program is started, and no file of others is read.
    read_kek = read_once(kek_of(settings, os.environ))
    secrets = SecretPlaces(settings.keys, settings.pki, read_kek)
    data = open_for_start(cluster, NodeId(settings.node), settings.data, secrets)
    file = settings.data / CLUSTER_FILE
    notify = ServiceNotify(os.environ)

    async def extend(node: Node, admin: AdminServer, _file: Path) -> Callable[[], None]:
        if attach is not None:
            attach(node, admin)
        lists = _keep_list(node, admin, file)
        opened = await open_broker(node, admin, _plan(settings))

        def follow_list() -> None:
            opened.service.references = dict(_references(node))

        lists.on_changed = follow_list

        def close() -> None:
            notify.stopping()
            opened.close()

        return close

    node_id, listen = NodeId(settings.node), _listen(settings)
    uvloop.run(
        serve_node(cluster, node_id, data, file, extend, listen=listen, started=notify.start)
    )


def take_up(settings: HostSettings) -> ClusterFile:
    """Read which cluster this is; at the first start, from the folder that came with the file.

    Raises DataDirectoryRefused where the two do not belong together.
    """
    for name in (CLUSTER_FILE, BROKER_FILE):
        if not (settings.data / name).exists():
            try:
                said = (settings.join / name).read_bytes()
            except OSError as error:
                raise DataDirectoryRefused(
                    "neither the data nor the join folder describes the cluster",
                    file=str(settings.join / name),
                    cause=error.strerror,
                ) from error
            settings.data.mkdir(parents=True, mode=0o700, exist_ok=True)
            write_durably(settings.data / name, said, 0o644)
    cluster = read_cluster_file(settings.data / CLUSTER_FILE)
    if cluster.cluster_id != settings.cluster:
        raise DataDirectoryRefused(
            "the data is another cluster's", there=cluster.cluster_id, asked=settings.cluster
        )
    if not cluster.admin_tls or not cluster.production:
        raise DataDirectoryRefused("the data is a development cluster's", cluster=cluster.id)
    if settings.hardening == "require":
        return _requiring(cluster)
    return cluster


def _requiring(cluster: ClusterFile) -> ClusterFile:
    import msgspec

    return msgspec.structs.replace(cluster, hardening=Hardening.REQUIRE)


def require_apart(settings: HostSettings) -> None:
    """Raise DataDirectoryRefused where keys lie beside the data that they open."""
    data = settings.data.resolve()
    places = {"keys": settings.keys, "pki": settings.pki, "client_pki": settings.client_pki}
    kind, _, rest = settings.kek.partition(":")
    if kind == "file":
        places["kek"] = Path(rest)
    for name, place in places.items():
        found = place.resolve()
        if found.is_relative_to(data) or data.is_relative_to(found):
            raise DataDirectoryRefused(
                "keys must not lie beside the data: whoever takes the disk has both",
                setting=name,
                place=str(place),
                data=str(settings.data),
            )


def kek_of(settings: HostSettings, environment: os._Environ[str]) -> ReadKek:
    """Return how the key is read that opens the ring. Raises KeyUnavailable."""
    kind, _, rest = settings.kek.partition(":")
    if kind == "file":
        return kek_in_file(Path(rest))
    if kind == "command":
        return kek_of_command(tuple(shlex.split(rest)))
    if settings.kms_url is None or not settings.kms_key:
        raise KeyUnavailable("kek = kms:… needs kms_url and kms_key")
    service = KeyService(
        settings.kms_url,
        settings.kms_region,
        settings.kms_key,
        access_from(environment),
        context=service_context(settings.cluster),
    )
    return kek_of_service(service, Path(rest))


def service_context(cluster: str) -> dict[str, str]:
    """Return what a key service binds a cluster's key to."""
    return {"quantum-cluster": cluster}


def host_doors(settings: HostSettings) -> Doors:
    """Return which doors a host opens: no plaintext among them."""
    return doors(settings, development=False)


def _listen(settings: HostSettings) -> ListenPlaces:
    assert settings.admin is not None
    return ListenPlaces(Address(*settings.peer), Address(*settings.admin))


def _plan(settings: HostSettings) -> BrokerPlan:
    return BrokerPlan(
        settings.data,
        read_broker_file(settings.data),
        host_doors(settings),
        settings.tenant,
        HostCertificates(settings.client_pki),
        limits=mqtt_limits(settings),
        archive=archive_entry(settings),
        backups=backups_entry(settings),
        traces=traces_entry(settings),
        references=_references,
        kafka_places=_kafka_places,
    )


def _references(node: Node) -> References:
    """Say where each node serves clients, as the cluster's list has it."""
    return {
        entry.node_id: {
            _TRANSPORTS[name]: place for name, place in entry.clients.items() if name in _TRANSPORTS
        }
        for entry in node.cluster.nodes
    }


def _kafka_places(node: Node) -> KafkaPlaces:
    """Say where each node serves Kafka's clients, as the cluster's list has it."""
    places = {}
    for entry in node.cluster.nodes:
        host, _, port = entry.clients.get("kafkas", "").rpartition(":")
        if host:
            places[entry.node_id] = (host.removeprefix("[").removesuffix("]"), int(port))
    return {"tls": places}


def _keep_list(node: Node, admin: AdminServer, file: Path) -> NodeListService:
    """Let this node keep its own list of nodes, and tell operators what one more host needs."""
    keeper = NodeListService(node, file)

    def office() -> dict[str, object]:
        return {
            "list": node.cluster.node_list,
            "keyring": (node.keys_directory / KEYRING_FILE).read_text(),
            "broker": (file.parent / BROKER_FILE).read_text(),
        }

    assert admin.commands is not None
    admin.commands.keep_list = keeper.keep
    admin.commands.office = office
    return keeper
