"""`quantum up`: a development broker in one process, on one node, with one voter per partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from clustor.runtime.admin.server import AdminServer
from clustor.runtime.cluster_file import (
    CLUSTER_FILE,
    DEVELOPMENT_SEGMENT_BYTES,
    ClusterFile,
    read_cluster_file,
)
from clustor.runtime.data_directory import open_data_directory
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.disk.policy import DiskNumbers
from clustor.runtime.disk.start_room import require_room
from clustor.runtime.errors import GroupStopped
from clustor.runtime.group import HostedGroup
from clustor.runtime.main import serve_node
from clustor.runtime.node import Node
from clustor.runtime.pki.identity import NodeId, cluster_id, utc_now
from quantum.config import ListenAddress, Settings
from quantum.edge.tls import ClientAuth, TlsPolicy
from quantum.node.backing_up import no_archive
from quantum.node.composition import BrokerPlan, open_broker
from quantum.node.listeners import Door, Doors, Listeners
from quantum.node.listening import note_listening
from quantum.node.server_certificates import DevelopmentCertificates
from quantum.node.service import BrokerService
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.tenants.broker_file import (
    DEVELOPMENT_TENANT,
    ArchiveEntry,
    BackupsEntry,
    TenantEntry,
    TracesEntry,
    prepare_broker,
    read_broker_file,
)

_ONE: Final = NodeId(1)
MQTT_PORT: Final = 1883
ADMIN_DEFAULT: Final = "127.0.0.1:9080"
_WORD_SECONDS: Final = 10.0  # for the control plane's first word
_LOOK_SECONDS: Final = 0.02
_OWN_GROUPS: Final = 2  # the key-value store's and the control plane's
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104  # compared with, never bound
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_PORT_UNUSED: Final = 9_100  # one node has no peers; what is written down is not listened on

journal = logging.getLogger("quantum.broker")

Say = Callable[[str], None]
Attach = Callable[[Node, AdminServer], object]


async def serve_alone(
    settings: Settings, say: Say, attach: Attach | None = None, *, command: str = "quantum"
) -> None:
    """Serve until SIGTERM or Ctrl-C; `attach` adds pages of rooms above to the admin port.

    `command` is what examples call: it can be pasted.

    Raises NodeError, EdgeError and what a replica refuses.
    """
    require_archive(settings)
    _require_room(settings)
    cluster = _describe(settings)
    data = open_data_directory(node_directory(settings.data, _ONE), cluster.id, _ONE)

    stop = asyncio.Event()
    stopped: list[str] = []
    """Groups that ended before all were ready; later ones leave the others to go on."""

    def end_unready(group: HostedGroup, why: str) -> None:
        stopped.append(f"group {group.partition_id}: {why}")
        stop.set()

    async def extend(node: Node, admin: AdminServer, _file: Path) -> Callable[[], None]:
        node.on_group_stopped = end_unready

        def led() -> None:
            node.on_group_stopped = lambda _group, _why: None
            when_open(service, ready)

        def ready() -> None:
            doors = listeners.open.items()
            note_listening(settings.data, {name: f"{at.host}:{at.port}" for name, (_, at) in doors})
            _greet(say, settings, listeners, command)

        if attach is not None:
            attach(node, admin)
        opened = await open_broker(node, admin, _plan(settings))
        service, listeners = opened.service, opened.listeners
        when_all_led(service, led)
        return opened.close

    await serve_node(cluster, _ONE, data, settings.data / CLUSTER_FILE, extend, stop=stop)
    if stopped:
        raise GroupStopped("the broker could not start", cause=stopped[0])


def _plan(settings: Settings) -> BrokerPlan:
    return BrokerPlan(
        settings.data,
        read_broker_file(settings.data),
        doors(settings, development=True),
        DEVELOPMENT_TENANT,
        DevelopmentCertificates(settings.data),
        limits=mqtt_limits(settings),
        archive=archive_entry(settings),
        backups=backups_entry(settings),
        traces=traces_entry(settings),
    )


def _require_room(settings: Settings) -> None:
    """Raise NoRoom before anything is made, or as the cluster that is there wants it."""
    file = settings.data / CLUSTER_FILE
    known = read_cluster_file(file) if file.exists() else None
    require_room(
        node_directory(settings.data, _ONE),
        groups=_OWN_GROUPS + _tenant_prgs(settings),
        numbers=known.flow.disk if known is not None else DiskNumbers(),
        segment_bytes=known.segment_bytes if known is not None else DEVELOPMENT_SEGMENT_BYTES,
    )


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


def archive_entry(settings: Settings) -> ArchiveEntry | None:
    """Return where the archive is, None where there is none."""
    if settings.archive is None:
        return None
    return ArchiveEntry(
        settings.archive, settings.archive_flush_seconds, settings.archive_hold_bytes_max
    )


def require_archive(settings: Settings) -> None:
    """Raise DataDirectoryRefused where backups are asked for, and nothing is archived."""
    if settings.backup_interval_seconds and settings.archive is None:
        raise no_archive()


def backups_entry(settings: Settings) -> BackupsEntry | None:
    """Return how often backups are made, None where they are not."""
    if not settings.backup_interval_seconds:
        return None
    return BackupsEntry(
        settings.backup_interval_seconds, settings.backup_keep_count, settings.backup_keep_days
    )


def traces_entry(settings: Settings) -> TracesEntry | None:
    """Return whether messages are traced, None where they are not."""
    return TracesEntry(settings.trace_percent / 100) if settings.traces == "on" else None


def mqtt_limits(settings: Settings) -> MqttLimits:
    """Return what clients may ask for."""
    return MqttLimits(
        packet_bytes_max=settings.packet_bytes_max,
        connect_bytes_max=settings.connect_bytes_max,
        receive_maximum=settings.receive_maximum,
        topic_alias_maximum=settings.topic_alias_maximum,
        keep_alive_seconds_max=settings.keep_alive_seconds_max,
        session_expiry_seconds_max=settings.session_expiry_seconds_max,
        session_expiry_seconds_default=settings.session_expiry_seconds_default,
        topic_levels_max=settings.topic_levels_max,
        queue_bytes_max=settings.queue_bytes_max,
    )


def _tenant(settings: Settings) -> TenantEntry:
    return TenantEntry(
        DEVELOPMENT_TENANT,
        _tenant_prgs(settings),
        settings.queue_messages_max,
        settings.queue_bytes_max,
        dedupe_horizon_seconds=settings.dedupe_horizon_seconds,
    )


def _tenant_prgs(settings: Settings) -> int:
    """Return how many partitions the tenant has: one process has one loop, so more pay nothing."""
    made = {entry.name: entry.prgs for entry in read_broker_file(settings.data).tenants}
    return settings.tenant_prgs or made.get(DEVELOPMENT_TENANT, 1)


def doors(settings: Settings, *, development: bool) -> Doors:
    """Return which doors the settings open."""
    return Doors(
        mqtt=_door(settings.mqtt),
        mqtts=_door(settings.mqtts),
        ws=_door(settings.ws),
        wss=_door(settings.wss),
        kafka=_door(settings.kafka),
        kafkas=_door(settings.kafkas),
        amqp=_door(settings.amqp),
        amqps=_door(settings.amqps),
        development=development,
        tls=TlsPolicy(settings.tls_min, ClientAuth(settings.client_auth)),
        password=settings.password,
        connections_max=settings.connections_max,
        connections_per_second=settings.connections_per_second,
        first_packet_seconds=settings.first_packet_seconds,
        half_open_max=settings.half_open_max,
        half_open_source_percent=settings.half_open_source_percent,
        tls_records=settings.tls_records,
        server_names=_server_names(settings),
    )


def _server_names(settings: Settings) -> frozenset[str]:
    """Return what clients may call this machine: what was said, and where it listens alone."""
    names = {name for name in settings.server_name.split(",") if name}
    for door in (settings.mqtts, settings.wss, settings.kafkas, settings.amqps):
        if door is not None and door.host not in (*_EVERYWHERE, *_LOOPBACK):
            names.add(door.host.lower())
    return frozenset(names)


def _door(address: ListenAddress | None) -> Door | None:
    return None if address is None else Door(address.host, address.port)


def when_all_led(service: BrokerService, then: Callable[[], None]) -> None:
    """Call `then` once every partition is led here."""

    def look() -> None:
        for tenant in service.tenants.values():
            for prg in tenant.prgs:
                if not prg.leading:
                    tenant.when_led(prg.number, look)
                    return
        then()

    look()


def when_open(service: BrokerService, then: Callable[[], None]) -> None:
    """Call `then` once no partition keeps clients waiting.

    A leader waits for the control plane's word first, which comes a moment later; where it does
    not come for long, status says more than silence would.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _WORD_SECONDS

    def look() -> None:
        prgs = (prg for tenant in service.tenants.values() for prg in tenant.prgs)
        if any(prg.closed for prg in prgs) and loop.time() < deadline:
            loop.call_later(_LOOK_SECONDS, look)
        else:
            then()

    look()


def _greet(say: Say, settings: Settings, listeners: Listeners, command: str) -> None:
    """Say where it listens, and what to try."""
    kinds = {"mqtt": "MQTT", "mqtts": "MQTTS", "ws": "WebSocket", "wss": "WSS"}
    kinds |= {"kafka": "Kafka", "kafkas": "Kafka TLS", "amqp": "AMQP", "amqps": "AMQPS"}
    say("Quantum is ready (development mode: plaintext on loopback only)")
    for name, (_, door) in listeners.open.items():
        say(f"  {kinds.get(name, name):<10} {door.host}:{door.port}")
    if settings.mqtts is not None and settings.mqtts.host in _EVERYWHERE:
        known = ", ".join(("localhost", *sorted(_server_names(settings))))
        more = "" if settings.server_name else "; --server-name adds what clients call this machine"
        say(f"  {'':<10} its certificate is for {known}{more}")
    say(f"  {'admin':<10} {settings.admin}")
    say(f"  {'data':<10} {settings.data}")
    if "mqtt" in listeners.open:
        port = listeners.open["mqtt"][1].port
        ours = "" if port == MQTT_PORT else f" --port {port}"
        say("Try it:")
        say(f"  mosquitto_sub -p {port} -t 'hello/#' -v")
        say(f"  mosquitto_pub -p {port} -q 1 -t hello/world -m 'fsynced before PUBACK'")
        say(f"  {command} pub hello/world 'once, exactly' --qos 2{ours}")
    if "kafka" in listeners.open:
        _greet_kafka(say, listeners.open["kafka"][1])
    if settings.admin is not None:
        at = "" if str(settings.admin) == ADMIN_DEFAULT else f" --admin {settings.admin}"
        say(f"  {command} status{at}")


def _greet_kafka(say: Say, door: Door) -> None:
    place = f"{door.host}:{door.port}"
    say(f"  echo 'fsynced before the ack' | kcat -b {place} -t hello -P")
    say(f"  kcat -b {place} -t hello -C -e")
    code = "p.produce('hello', b'from Python'); p.flush()"
    start = f"p = Producer({{'bootstrap.servers': '{place}'}})"
    say(f'  python3 -c "from confluent_kafka import Producer; {start}; {code}"')
