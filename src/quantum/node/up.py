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
from quantum.node.archiving import closing, start_archiving
from quantum.node.listeners import Door, Doors, Listeners
from quantum.node.listening import note_listening
from quantum.node.served import ServedBroker
from quantum.node.service import BrokerService
from quantum.node.tenant_following import keep_tenants
from quantum.node.trace_starting import start_traces
from quantum.node.why import show_broker
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.tenants.broker_file import (
    DEVELOPMENT_TENANT,
    ArchiveEntry,
    TenantEntry,
    TracesEntry,
    prepare_broker,
    read_broker_file,
)
from quantum.tenants.policy import TenantsFile

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
        service = BrokerService(node, mqtt_limits(settings))
        service.audit = node.audit
        broker = read_broker_file(settings.data)
        end_traces = start_traces(node, service, traces_entry(settings))
        for ordinal, entry in enumerate(broker.tenants):
            service.add_tenant(entry, ordinal)
        service.watch_rings(settings.data)
        keeper = keep_tenants(node, service, broker)
        service.obey(TenantsFile(settings.data))
        archiving = start_archiving(node, service, archive_entry(settings))
        served = admin.service = ServedBroker(node, service, archiving)
        show_broker(service, node.watch)
        said = keeper.at_start() if keeper is not None else {}
        own = doors(settings).told(said)
        listeners = Listeners(service, own, settings.data, DEVELOPMENT_TENANT)
        if keeper is not None:
            listeners.follow(keeper)
        await listeners.start()
        node.listeners = listeners.addresses
        when_all_led(service, led)
        return closing(listeners.stop_accepting, archiving, served.close, end_traces)

    await serve_node(cluster, _ONE, data, settings.data / CLUSTER_FILE, extend, stop=stop)
    if stopped:
        raise GroupStopped("the broker could not start", cause=stopped[0])


def _require_room(settings: Settings) -> None:
    """Raise NoRoom before anything is made, or as the cluster that is there wants it."""
    file = settings.data / CLUSTER_FILE
    known = read_cluster_file(file) if file.exists() else None
    require_room(
        node_directory(settings.data, _ONE),
        groups=_OWN_GROUPS + settings.tenant_prgs,
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
        settings.tenant_prgs,
        settings.queue_messages_max,
        settings.queue_bytes_max,
        dedupe_horizon_seconds=settings.dedupe_horizon_seconds,
    )


def doors(settings: Settings) -> Doors:
    """Return which doors the settings open."""
    return Doors(
        _door(settings.mqtt),
        _door(settings.mqtts),
        _door(settings.ws),
        _door(settings.wss),
        TlsPolicy(settings.tls_min, ClientAuth(settings.client_auth)),
        settings.password,
        settings.connections_max,
        settings.connections_per_second,
        settings.first_packet_seconds,
        settings.half_open_max,
        settings.half_open_source_percent,
        settings.tls_records,
        server_names=_server_names(settings),
    )


def _server_names(settings: Settings) -> frozenset[str]:
    """Return what clients may call this machine: what was said, and where it listens alone."""
    names = {name for name in settings.server_name.split(",") if name}
    for door in (settings.mqtts, settings.wss):
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
    if settings.admin is not None:
        at = "" if str(settings.admin) == ADMIN_DEFAULT else f" --admin {settings.admin}"
        say(f"  {command} status{at}")
