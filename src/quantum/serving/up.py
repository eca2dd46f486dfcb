"""`quantum up`: a development broker in one process, on one node, with one voter per partition."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from clustor.runtime.admin import AdminServer
from clustor.runtime.cluster_file import CLUSTER_FILE, ClusterFile
from clustor.runtime.data_directory import open_data_directory
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.main import serve_node
from clustor.runtime.node import Node
from clustor.runtime.pki import NodeId, cluster_id, utc_now
from quantum.config import ListenAddress, Settings
from quantum.serving.broker_file import DEVELOPMENT_TENANT, TenantEntry, prepare_broker
from quantum.serving.limits import MqttLimits
from quantum.serving.listeners import Door, Doors, Listeners
from quantum.serving.service import BrokerService
from quantum.serving.views import BrokerPages

_ONE: Final = NodeId(1)
_PORT_UNUSED: Final = 9_100  # one node has no peers; what is written down is not listened on

journal = logging.getLogger("quantum.broker")

Say = Callable[[str], None]


async def serve_alone(settings: Settings, say: Say) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises NodeError, EdgeError and what a replica refuses."""
    cluster = _describe(settings)
    data = open_data_directory(node_directory(settings.data, _ONE), cluster.id, _ONE)

    async def extend(node: Node, admin: AdminServer, _file: Path) -> Callable[[], None]:
        service = BrokerService(node, mqtt_limits(settings))
        service.add_tenant(_tenant(settings), 0)
        admin.pages = BrokerPages(service)
        listeners = Listeners(service, doors(settings), settings.data, DEVELOPMENT_TENANT)
        await listeners.start()
        _greet(say, settings, listeners)
        return listeners.stop_accepting

    await serve_node(cluster, _ONE, data, settings.data / CLUSTER_FILE, extend)


def _describe(settings: Settings) -> ClusterFile:
    """Make the directory, or take it up; where this node listens is said by the settings."""
    cluster = prepare_cluster(
        settings.data,
        cluster_id("dev"),
        nodes=1,
        base_port=_PORT_UNUSED - 10,
        groups=1,
        now=utc_now(),
    )
    prepare_broker(settings.data, _tenant(settings))
    admin = settings.admin or ListenAddress("127.0.0.1", 0)
    entry = msgspec.structs.replace(
        cluster.nodes[0], host=admin.host, admin_port=admin.port, peer_port=0
    )
    return msgspec.structs.replace(cluster, nodes=(entry,))


def mqtt_limits(settings: Settings) -> MqttLimits:
    """Return what clients may ask for."""
    return MqttLimits(
        packet_bytes_max=settings.packet_bytes_max,
        connect_bytes_max=settings.connect_bytes_max,
        receive_maximum=settings.receive_maximum,
        topic_alias_maximum=settings.topic_alias_maximum,
        keep_alive_seconds_max=settings.keep_alive_seconds_max,
        session_expiry_seconds_max=settings.session_expiry_seconds_max,
        queue_bytes_max=settings.queue_bytes_max,
    )


def _tenant(settings: Settings) -> TenantEntry:
    return TenantEntry(
        DEVELOPMENT_TENANT,
        settings.tenant_prgs,
        settings.queue_messages_max,
        settings.queue_bytes_max,
    )


def doors(settings: Settings) -> Doors:
    """Return which doors the settings open."""
    return Doors(
        _door(settings.mqtt),
        _door(settings.mqtts),
        _door(settings.ws),
        settings.connections_max,
        settings.connections_per_second,
        settings.first_packet_seconds,
    )


def _door(address: ListenAddress | None) -> Door | None:
    return None if address is None else Door(address.host, address.port)


def _greet(say: Say, settings: Settings, listeners: Listeners) -> None:
    """Say where it listens, and what to try."""
    kinds = {"mqtt": "MQTT, plaintext", "mqtts": "MQTT over TLS", "ws": "MQTT over WebSocket"}
    say(f"Quantum serves the tenant {DEVELOPMENT_TENANT!r} from {settings.data}")
    for name, (_, door) in listeners.open.items():
        say(f"  {kinds[name]:<22} {door.host}:{door.port}")
    if settings.admin is not None:
        say(f"  {'status':<22} {settings.admin.host}:{settings.admin.port}")
    say("development mode: plaintext is for this machine only")
    if "mqtt" in listeners.open:
        _, door = listeners.open["mqtt"]
        port = "" if door.port == 1883 else f" -p {door.port}"
        ours = "" if door.port == 1883 else f" --port {door.port}"
        say("try, each in a terminal of its own:")
        say(f"  mosquitto_sub{port} -t 'hello/#' -v")
        say(f"  mosquitto_pub{port} -t hello/world -q 1 -m 'fsynced before PUBACK'")
        say(f"  quantum pub{ours} hello/world 'once, exactly' --qos 2")
