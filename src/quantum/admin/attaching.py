"""The API on a running node: its control service as the port, its groups, its certificate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from clustor.control import Answer, Caller, Command, DraftReading
from clustor.log.types import PartitionId
from clustor.runtime.admin.server import AdminServer
from clustor.runtime.admin.status import group_status
from clustor.runtime.admin.trust import note_ended
from clustor.runtime.control.records import operator_of
from clustor.runtime.node import Node
from clustor.runtime.node_parts import NodeControl
from clustor.runtime.pki.certificate_watch import RepeatedCall
from clustor.runtime.pki.peer_trust import Disbelief
from clustor.runtime.telemetry.node import NodeTelemetry
from clustor.security import AuditPort as SecurityAudit
from quantum.admin.identity import revoked_serials, serial_name
from quantum.admin.pages import AdminPages
from quantum.admin.port import ExplanationPort, RefusalNote, RefusalSink
from quantum.node.main import serve_mqtt
from quantum.node.served import ServedBroker


class ServicePort:
    """A node's control service as the API asks it."""

    def __init__(self, service: NodeControl) -> None:
        self._service = service

    async def call(self, command: Command, caller: Caller, request_id: str) -> Answer:
        return await self._service.call(command, caller, request_id)

    async def state(self, linearizable: bool) -> DraftReading:
        return await self._service.reading() if linearizable else self._service.state()

    def local_age(self) -> int | None:
        return self._service.local_age()


class HostedGroups:
    """The groups of a node, as its status shows them."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def numbers(self) -> Iterable[int]:
        return list(self._node.groups)

    def status(self, group: int) -> Mapping[str, object] | None:
        hosted = self._node.groups.get(PartitionId(group))
        if hosted is None:
            return None
        found: dict[str, Any] = msgspec.to_builtins(group_status(hosted))
        return found


class RefusalLog(Protocol):
    """A node's signed audit log, as far as refusals go: it guards itself against storms."""

    def refused(self, what: str, /, *, who: str, why: str, target: str = "") -> None: ...


class RefusalAuditor:
    """Lets refusals of the API stand in the node's signed audit log."""

    def __init__(self, desk: RefusalLog) -> None:
        self._desk = desk

    def note(self, refusal: RefusalNote) -> None:
        self._desk.refused(
            "AdminRequestRefused",
            who=refusal.identity or "",
            why=refusal.error,
            target=f"{refusal.method} {refusal.path}",
        )


class StreamsWatch:
    """Ends the connections of callers whom the control plane revokes while they are connected.

    Requests are asked about one by one; a stream was asked about when it began.
    """

    def __init__(
        self, control: NodeControl, admin: AdminServer, audit: SecurityAudit | None
    ) -> None:
        self._control = control
        self._admin = admin
        self._audit = audit

    def look(self) -> None:
        """End what must end."""
        revoked = revoked_serials(self._control.state())
        if revoked:
            for shown in self._admin.end_where(lambda each: serial_name(each.serial) in revoked):
                note_ended(self._audit, shown, Disbelief.REVOKED)


def attach(
    node: Node,
    admin: AdminServer,
    *,
    why: ExplanationPort | None = None,
    sink: RefusalSink | None = None,
) -> AdminPages | None:
    """Put the API on a node's admin port; None: the cluster has no control plane.

    Without `why` the node's own telemetry explains.

    On plaintext loopback every caller is the cluster's operator; under TLS it is the certificate.
    """
    if node.control is None:
        return None
    cluster, watch = node.cluster, node.watch
    if why is None and isinstance(watch, NodeTelemetry):
        why = watch
    if sink is None and node.audit is not None:
        sink = RefusalAuditor(node.audit)
    pages = AdminPages(
        ServicePort(node.control),
        development=None if cluster.admin_tls else operator_of(cluster.id).identity,
        why=why,
        groups=HostedGroups(node),
        sink=sink,
        broker=lambda: admin.service if isinstance(admin.service, ServedBroker) else None,
    )
    admin.api = pages
    if cluster.admin_tls:
        RepeatedCall(StreamsWatch(node.control, admin, node.audit).look)
        admin.calls = None  # that page asks nobody who he is: below /v1 the certificate says it
    return pages


async def serve(node: Node, admin: AdminServer, cluster_file: Path) -> Callable[[], None]:
    """Serve the broker of a cluster's node, and the API beside it."""
    attach(node, admin)
    return await serve_mqtt(node, admin, cluster_file)
