"""The composition root of a broker node: development and production open it with another plan.

A `BrokerPlan` says where the tenants' files are, which doors open, whose certificates they show
and where messages are archived to. Everything else is the same: what a laptop runs is what hosts
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clustor.runtime.admin.server import AdminServer
from clustor.runtime.node import Node
from quantum.edge.ports import Transport
from quantum.node.amqp_serving import serve_amqp
from quantum.node.archiving import closing, start_archiving
from quantum.node.backing_up import start_backups
from quantum.node.kafka_serving import KafkaPlaces, serve_kafka
from quantum.node.listeners import Doors, Listeners
from quantum.node.served import ServedBroker
from quantum.node.server_certificates import CertificateSource
from quantum.node.service import BrokerService
from quantum.node.tenant_following import keep_tenants
from quantum.node.trace_starting import start_traces
from quantum.node.why import show_broker
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.tenants.broker_file import (
    BROKER_FILE,
    ArchiveEntry,
    BackupsEntry,
    BrokerFile,
    TracesEntry,
)
from quantum.tenants.policy import TenantsFile

References = Mapping[int, dict[Transport, str]]


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """What a node's broker is opened with."""

    directory: Path
    """Where `broker.json` and `tenants.toml` are."""
    described: BrokerFile
    doors: Doors
    tenant: str
    """Whose clients come where no name says otherwise."""
    certificates: CertificateSource
    limits: MqttLimits = field(default_factory=MqttLimits)
    archive: ArchiveEntry | None = None
    backups: BackupsEntry | None = None
    traces: TracesEntry | None = None
    references: Callable[[Node], References] = lambda _node: {}
    """Where each node serves clients, for those who must go elsewhere."""
    kafka_places: Callable[[Node], KafkaPlaces] = lambda _node: {}
    """Where each node serves Kafka's clients; this node's own listeners are added."""


@dataclass(frozen=True, slots=True)
class OpenBroker:
    """A broker whose doors are open; `close` lets nobody else in, and ends what it began."""

    service: BrokerService
    listeners: Listeners
    close: Callable[[], None]


async def open_broker(node: Node, admin: AdminServer, plan: BrokerPlan) -> OpenBroker:
    """Host the tenants, follow the control plane's word on them, and open the doors.

    Raises EdgeError and DataDirectoryRefused.
    """
    service = BrokerService(node, plan.limits)
    service.audit = node.audit
    service.references = dict(plan.references(node))
    end_traces = start_traces(node, service, plan.traces)
    for ordinal, entry in enumerate(plan.described.tenants):
        service.add_tenant(entry, ordinal)
    service.watch_rings(plan.directory)
    is_broker = (plan.directory / BROKER_FILE).exists()
    keeper = keep_tenants(node, service, plan.described) if is_broker else None
    service.obey(TenantsFile(plan.directory))
    archiving = start_archiving(node, service, plan.archive)
    backups = start_backups(node, archiving, plan.backups)
    served = admin.service = ServedBroker(node, service, archiving, backups)
    show_broker(service, node.watch)
    doors = plan.doors if keeper is None else plan.doors.told(keeper.at_start())
    listeners = Listeners(service, doors, plan.certificates, plan.tenant)
    end_amqp = serve_amqp(service, listeners)
    serve_kafka(node, service, listeners, plan.kafka_places(node))
    if keeper is not None:
        listeners.follow(keeper)
    if service.tenants:
        await listeners.start()
        node.listeners = listeners.addresses
    end_backups = (lambda: None) if backups is None else backups.close
    last = (end_backups, served.close, end_traces, end_amqp)
    close = closing(listeners.stop_accepting, archiving, *last)
    return OpenBroker(service, listeners, close)
