"""The process of one broker node: `python -m quantum.node.main --cluster FILE --node N …`.

A Clustor node that also hosts the partitions of the development tenant and serves MQTT. Its
exit codes are those of `clustor.runtime.main`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from clustor.runtime import main as clustor_main
from clustor.runtime.admin.server import AdminServer
from clustor.runtime.cluster_file import ADMIN_ROLE, LOOPBACK
from clustor.runtime.node import Node
from quantum.edge.ports import Transport
from quantum.edge.tls import ClientAuth, TlsPolicy
from quantum.node.composition import BrokerPlan, open_broker
from quantum.node.kafka_serving import KafkaPlaces
from quantum.node.listeners import Door, Doors
from quantum.node.listening import (
    AMQP_ROLE,
    KAFKA_ROLE,
    KAFKAS_ROLE,
    MQTT_ROLE,
    MQTTS_ROLE,
    WS_ROLE,
    WSS_ROLE,
)
from quantum.node.server_certificates import DevelopmentCertificates
from quantum.tenants.broker_file import DEVELOPMENT_TENANT, read_broker_file

_PORTS_PER_NODE: Final = 10
"""All nodes share a machine and one `tenants.toml`: what it says is the first node's port."""

journal = logging.getLogger("quantum.broker")


async def serve_mqtt(node: Node, admin: AdminServer, cluster_file: Path) -> Callable[[], None]:
    """Host the tenants of `broker.json`, and listen for their clients on loopback."""
    directory = cluster_file.parent
    described = read_broker_file(directory)
    first = node.settings.entry.admin_port - ADMIN_ROLE
    doors = Doors(
        mqtt=Door(LOOPBACK, first + MQTT_ROLE),
        mqtts=Door(LOOPBACK, first + MQTTS_ROLE),
        ws=Door(LOOPBACK, first + WS_ROLE),
        wss=Door(LOOPBACK, first + WSS_ROLE) if described.wss else None,
        kafka=Door(LOOPBACK, first + KAFKA_ROLE),
        kafkas=Door(LOOPBACK, first + KAFKAS_ROLE),
        amqp=Door(LOOPBACK, first + AMQP_ROLE),
        development=True,
        tls=TlsPolicy(described.tls_min, ClientAuth(described.client_auth)),
        password=described.password,
        tls_records=described.tls_records,
        port_shift=_PORTS_PER_NODE * (node.node_id - 1),
    )
    plan = BrokerPlan(
        directory,
        described,
        doors,
        DEVELOPMENT_TENANT,
        DevelopmentCertificates(directory),
        archive=described.archive,
        backups=None if described.backups is msgspec.UNSET else described.backups,
        traces=described.traces,
        references=_references,
        kafka_places=_kafka_places,
    )
    opened = await open_broker(node, admin, plan)
    if opened.listeners.open:
        journal.info("development mode: MQTT is plaintext on %s:%d", LOOPBACK, first + MQTT_ROLE)
    return opened.close


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


def _kafka_places(node: Node) -> KafkaPlaces:
    """Say where each node of a development cluster serves Kafka's clients."""
    return {
        transport: {
            int(entry.id): (entry.host, entry.admin_port - ADMIN_ROLE + role)
            for entry in node.cluster.nodes
        }
        for transport, role in (("tcp", KAFKA_ROLE), ("tls", KAFKAS_ROLE))
    }


def main() -> None:
    clustor_main.main(serve_mqtt)


if __name__ == "__main__":
    main()
