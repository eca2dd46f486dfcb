"""The process of one broker node: `python -m quantum.node.main --cluster FILE --node N …`.

A Clustor node that also hosts the partitions of the development tenant and serves MQTT. Its
exit codes are those of `clustor.runtime.main`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from clustor.runtime import main as clustor_main
from clustor.runtime.admin.server import AdminServer
from clustor.runtime.cluster_file import ADMIN_ROLE, LOOPBACK
from clustor.runtime.node import Node
from quantum.edge.ports import Transport
from quantum.edge.tls import ClientAuth, TlsPolicy
from quantum.node.archiving import closing, start_archiving
from quantum.node.listeners import Door, Doors, Listeners
from quantum.node.listening import MQTT_ROLE, MQTTS_ROLE, WS_ROLE, WSS_ROLE
from quantum.node.served import ServedBroker
from quantum.node.service import BrokerService
from quantum.node.tenant_following import keep_tenants
from quantum.node.trace_starting import start_traces
from quantum.node.why import show_broker
from quantum.tenants.broker_file import BROKER_FILE, DEVELOPMENT_TENANT, read_broker_file
from quantum.tenants.policy import TenantsFile

_PORTS_PER_NODE: Final = 10
"""All nodes share a machine and one `tenants.toml`: what it says is the first node's port."""

journal = logging.getLogger("quantum.broker")


async def serve_mqtt(node: Node, admin: AdminServer, cluster_file: Path) -> Callable[[], None]:
    """Host the tenants of `broker.json`, and listen for their clients on loopback."""
    service = BrokerService(node)
    service.audit = node.audit
    described = read_broker_file(cluster_file.parent)
    end_traces = start_traces(node, service, described.traces)
    for ordinal, entry in enumerate(described.tenants):
        service.add_tenant(entry, ordinal)
    service.watch_rings(cluster_file.parent)
    is_broker = (cluster_file.parent / BROKER_FILE).exists()
    keeper = keep_tenants(node, service, described) if is_broker else None
    service.obey(TenantsFile(cluster_file.parent))
    archiving = start_archiving(node, service, described.archive)
    served = admin.service = ServedBroker(node, service, archiving)
    show_broker(service, node.watch)
    service.references = _references(node)
    if not service.tenants and keeper is None:
        return closing(end_traces, archiving, served.close)
    first = node.settings.entry.admin_port - ADMIN_ROLE
    doors = Doors(
        mqtt=Door(LOOPBACK, first + MQTT_ROLE),
        mqtts=Door(LOOPBACK, first + MQTTS_ROLE),
        ws=Door(LOOPBACK, first + WS_ROLE),
        wss=Door(LOOPBACK, first + WSS_ROLE) if described.wss else None,
        tls=TlsPolicy(described.tls_min, ClientAuth(described.client_auth)),
        password=described.password,
        tls_records=described.tls_records,
        port_shift=_PORTS_PER_NODE * (node.node_id - 1),
    )
    if keeper is not None:
        doors = doors.told(keeper.at_start())
    listeners = Listeners(service, doors, cluster_file.parent, DEVELOPMENT_TENANT)
    if keeper is not None:
        listeners.follow(keeper)
    if service.tenants:
        await listeners.start()
        node.listeners = listeners.addresses
    journal.info("development mode: MQTT is plaintext on %s:%d", LOOPBACK, first + MQTT_ROLE)
    return closing(listeners.stop_accepting, archiving, served.close, end_traces)


def _references(node: Node) -> dict[int, dict[Transport, str]]:
    """Say where each node of a development cluster serves clients."""
    roles: dict[Transport, int] = {
        "tcp": MQTT_ROLE,
        "tls": MQTTS_ROLE,
        "ws": WS_ROLE,
        "wss": WSS_ROLE,
    }
    return {
        int(entry.id): {
            transport: f"{entry.host}:{entry.admin_port - ADMIN_ROLE + role}"
            for transport, role in roles.items()
        }
        for entry in node.cluster.nodes
    }


def main() -> None:
    clustor_main.main(serve_mqtt)


if __name__ == "__main__":
    main()
