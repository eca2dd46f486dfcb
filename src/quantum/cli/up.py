"""`quantum up`: a development broker in one process, until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from quantum.cli.config import load_or_fail
from quantum.cli.exits import Exit, fail
from quantum.config import Configuration, ListenAddress, Settings

if TYPE_CHECKING:
    from clustor.runtime.admin import AdminServer
    from clustor.runtime.cluster_file import ClusterFile
    from clustor.runtime.node import Node
    from quantum.edge import Listener, Lobby
    from quantum.serving.limits import MqttLimits
    from quantum.serving.service import BrokerService

_POLL_SECONDS: Final = 0.01
_ADDRESS: Final = "HOST:PORT"


def up(
    *,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Default: var.")] = None,
    mqtt: Annotated[
        str | None, typer.Option(metavar=_ADDRESS, help="Plaintext MQTT; off: none.")
    ] = None,
    mqtts: Annotated[str | None, typer.Option(metavar=_ADDRESS, help="MQTT over TLS.")] = None,
    ws: Annotated[str | None, typer.Option(metavar=_ADDRESS, help="Plaintext WebSocket.")] = None,
    admin: Annotated[str | None, typer.Option(metavar=_ADDRESS, help="Status.")] = None,
    tenant_prgs: Annotated[
        str | None, typer.Option(metavar="N", help="Partitions of the tenant, for a new DIR.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file.")] = None,
) -> None:
    """Start a development broker in this process, and stop it with Ctrl-C.

    One node with one voter per partition, and the tenant `dev`; what it acknowledges is fsynced.
    Plaintext is on loopback only. `quantum config show` prints what it runs with. Exit code 2: a
    setting. 3: DIR is another's, or in use. 4: keys. 8: a port is taken. 9: a certificate.
    10: the self-test. 11: a replica that must not start.
    """
    flags = {"data": data, "mqtt": mqtt, "mqtts": mqtts, "ws": ws, "admin": admin}
    configuration = load_or_fail({**flags, "tenant_prgs": tenant_prgs}, config)
    _require_fixed(configuration)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    _serve(configuration.settings)


def _require_fixed(configuration: Configuration) -> None:
    """Refuse what cannot be chosen yet, rather than ignore it."""
    for name in ("queue_bytes_max", "queue_messages_max"):
        if getattr(configuration.settings, name) != getattr(Settings(), name):
            source = configuration.sources[name]
            fail(f"{source}: the bounds of queues cannot be changed yet", Exit.USAGE)
    if configuration.settings.admin.host != "127.0.0.1":
        fail(f"{configuration.sources['admin']}: must be on 127.0.0.1 for now", Exit.USAGE)


def _serve(settings: Settings) -> None:
    import uvloop

    from clustor.log.errors import LogError
    from clustor.raft.errors import DataLost
    from clustor.replica import ReplicaError
    from clustor.runtime.cluster_file import CLUSTER_FILE
    from clustor.runtime.data_directory import open_data_directory
    from clustor.runtime.development import node_directory
    from clustor.runtime.disk import DiskError
    from clustor.runtime.errors import NodeError
    from clustor.runtime.main import serve_node
    from clustor.runtime.memory import keep_freed_memory
    from clustor.runtime.pki import NodeId
    from quantum.cli.exits import exit_of
    from quantum.cli.node_exits import exit_of_node
    from quantum.edge.errors import CertificatesUnusable, EdgeError, ListenFailed

    node = NodeId(1)
    try:
        _check_self()
        keep_freed_memory()
        cluster = _prepare(settings)
        directory = open_data_directory(node_directory(settings.data, node), cluster.id, node)
        file = settings.data / CLUSTER_FILE
        uvloop.run(serve_node(cluster, node, directory, file, _Extension(settings)))
    except NodeError as error:
        fail(str(error), exit_of_node(error))
    except ListenFailed as error:
        fail(str(error), Exit.PORT_TAKEN)
    except CertificatesUnusable as error:
        fail(str(error), Exit.CERTIFICATE)
    except EdgeError as error:
        fail(str(error), Exit.USAGE)
    except (ReplicaError, DataLost, DiskError) as error:
        fail(str(error), Exit.REPLICA)
    except LogError as error:
        fail(str(error), exit_of(error))


def _check_self() -> None:
    from clustor.runtime.errors import SelfTestFailed
    from clustor.selftest import run_selftest

    failed = [check.name for check in run_selftest() if not check.passed]
    if failed:
        raise SelfTestFailed("the self-test failed", vectors=", ".join(failed))


def _prepare(settings: Settings) -> ClusterFile:
    from clustor.runtime.cluster_file import ADMIN_ROLE, PORTS_PER_NODE
    from clustor.runtime.development import prepare_cluster
    from clustor.runtime.pki import cluster_id, utc_now
    from quantum.serving.broker_file import prepare_broker

    base_port = settings.admin.port - PORTS_PER_NODE - ADMIN_ROLE
    if base_port < 1:
        fail(f"--admin {settings.admin}: the port must be above 11", Exit.USAGE)
    cluster = prepare_cluster(
        settings.data,
        cluster_id("dev"),
        nodes=1,
        base_port=base_port,
        groups=1,
        now=utc_now(),
    )
    prepare_broker(settings.data, settings.tenant_prgs)
    return cluster


class _Extension:
    """What the broker adds to its node: partitions, listeners, and a word when all is ready."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._greeting: asyncio.Task[None] | None = None

    async def __call__(
        self, node: Node, admin: AdminServer, cluster_file: Path
    ) -> Callable[[], None]:
        from quantum.serving.broker_file import read_broker_file
        from quantum.serving.service import BrokerService
        from quantum.serving.views import BrokerPages

        service = BrokerService(node, _limits(self._settings))
        for ordinal, entry in enumerate(read_broker_file(cluster_file.parent).tenants):
            service.add_tenant(entry.name, ordinal, entry.prgs)
        admin.pages = BrokerPages(service)
        listeners = await _listen(self._settings, service)
        self._greeting = asyncio.create_task(_greet(self._settings, service))

        def close() -> None:
            for listener in listeners:
                listener.stop_accepting()

        return close


def _limits(settings: Settings) -> MqttLimits:
    from quantum.serving.limits import MqttLimits

    return MqttLimits(
        packet_bytes_max=settings.packet_bytes_max,
        connect_bytes_max=settings.connect_bytes_max,
        receive_maximum=settings.receive_maximum,
        topic_alias_maximum=settings.topic_alias_maximum,
        keep_alive_seconds_max=settings.keep_alive_seconds_max,
        session_expiry_seconds_max=settings.session_expiry_seconds_max,
    )


async def _listen(settings: Settings, service: BrokerService) -> list[Listener]:
    from clustor.runtime.pki import utc_now
    from quantum.edge import Listener, TlsListener, over_websocket, require_loopback
    from quantum.edge.tls_development import prepare_server
    from quantum.serving.broker_file import DEVELOPMENT_TENANT

    lobby = _lobby(settings)
    new_handler = service.new_connection
    wanted: list[tuple[Listener, ListenAddress | None]] = [
        (Listener("mqtt", lobby, new_handler, tenant=DEVELOPMENT_TENANT), settings.mqtt),
        (
            Listener("ws", lobby, over_websocket(new_handler), tenant=DEVELOPMENT_TENANT),
            settings.ws,
        ),
    ]
    for listener, address in wanted:
        if address is not None:
            require_loopback(listener.name, address.host, development=True)
    if settings.mqtts is not None:
        tls = TlsListener(
            "mqtts",
            lobby,
            new_handler,
            certificates=prepare_server(settings.data, utc_now()),
            tenant_of=lambda _server_name: DEVELOPMENT_TENANT,
        )
        wanted.append((tls, settings.mqtts))
    started = [(listener, address) for listener, address in wanted if address is not None]
    for listener, address in started:
        await listener.start(address.host, address.port)
    return [listener for listener, _ in started]


def _lobby(settings: Settings) -> Lobby:
    from quantum.edge import AdmissionLimits, EdgeLimits, Lobby
    from quantum.edge.listener_files import connections_possible, raise_file_limit

    possible = connections_possible(settings.connections_max, raise_file_limit())
    if possible < settings.connections_max:
        logging.getLogger("quantum.edge").info(
            "the system's limit of open files allows %d clients at once", possible
        )
    return Lobby(
        EdgeLimits(
            AdmissionLimits(
                connections_max=possible,
                per_second=float(settings.connections_per_second),
                burst=settings.connections_per_second,
                waiting_max=possible,
            ),
            first_answer_seconds=float(settings.first_packet_seconds),
        )
    )


async def _greet(settings: Settings, service: BrokerService) -> None:
    """Say where we listen once every partition has a leader."""
    partitions = [prg for tenant in service.tenants.values() for prg in tenant.prgs]
    while any(prg.leader_node is None for prg in partitions):
        await asyncio.sleep(_POLL_SECONDS)
    for line in greeting(settings):
        typer.echo(line)
    sys.stdout.flush()


def greeting(settings: Settings) -> list[str]:
    """Return what a developer wants to know first, with lines to try."""
    lines = ["Quantum is ready (development mode: plaintext on loopback only)"]
    for name, address in (
        ("MQTT", settings.mqtt),
        ("MQTTS", settings.mqtts),
        ("WebSocket", settings.ws),
        ("admin", settings.admin),
    ):
        if address is not None:
            lines.append(f"  {name:<10} {address}")
    lines.append(f"  {'data':<10} {settings.data}")
    if settings.mqtt is not None:
        port = settings.mqtt.port
        ours = "" if port == 1883 else f" --port {port}"
        lines += [
            "Try it:",
            f"  mosquitto_sub -p {port} -t 'hello/#' -v",
            f"  mosquitto_pub -p {port} -q 1 -t hello/world -m 'fsynced'",
            f"  quantum pub hello/world 'hello' --qos 2{ours}",
            f"  quantum sub 'hello/#' -v{ours}",
        ]
    return lines
