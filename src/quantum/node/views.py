"""What people ask a broker node: its state, sessions, clients, topics and retained messages.

Every node holds a replica of every partition, so each answers for all of them; who is connected
is known to the leaders alone. Lists come page by page, and only the rows of a page are made: a
tenant may have very many, and the loop that looks at them serves clients too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from quantum.broker import Message, waits_for
from quantum.broker.session import Session
from quantum.node.rows import (
    ArchiveView,
    BackupsView,
    BrokerStatus,
    ClientPage,
    ClientRow,
    DigestRow,
    Digests,
    DiskRow,
    FilterRow,
    LedElsewhere,
    PartitionRow,
    Payload,
    RetainedPage,
    RetainedRow,
    SessionPage,
    SessionRow,
    SessionView,
    StoppedGroup,
    TopicPage,
    TopicRow,
)
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.session.connection import MqttConnection
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions
from quantum.protocols.mqtt.session.phase import ConnectionPhase
from quantum.protocols.mqtt.session.tenant_sessions import TenantClient
from quantum.topics import matches

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.node.archiving import Archiving
    from quantum.node.backing_up import ScheduledBackups
    from quantum.node.service import BrokerService

_SHOWN_BYTES_MAX: Final = 1024
_PROTOCOLS: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}

Item = TypeVar("Item")
Made = TypeVar("Made")


class BrokerViews:
    """What this node's broker looks like now. Called in the loop's thread; it changes nothing."""

    def __init__(
        self,
        service: BrokerService,
        archiving: Archiving | None = None,
        backups: ScheduledBackups | None = None,
    ) -> None:
        self._service = service
        self._archiving = archiving
        self._backups = backups

    def status(self) -> BrokerStatus:
        service = self._service
        room = service.node.disk_room
        return BrokerStatus(
            connections=service.mqtt.connections,
            dropped=service.mqtt.dropped,
            faults=service.mqtt.faults,
            partitions=[
                _partition(each)
                for tenant in service.mqtt.tenants.values()
                for each in tenant.sessions
            ],
            stopped=[
                StoppedGroup(group=int(group.partition_id), cause=str(group.replica.failed))
                for group in service.node.groups.values()
                if group.replica.failed is not None
            ],
            disk=DiskRow(level=str(room.level), free_bytes=room.free_bytes),
            closed=sorted({words for prg in self._prgs() for words in prg.closed.values()}),
        )

    def digests(self) -> Digests:
        return Digests(partitions=[_digest(prg) for prg in self._prgs()])

    def archive(self) -> ArchiveView | None:
        """Say how far the archive is; None: there is none."""
        if self._archiving is None:
            return None
        return msgspec.convert(self._archiving.status(), type=ArchiveView)

    def backups(self) -> BackupsView | None:
        """Say how the schedule of backups stands; None: there is none."""
        if self._backups is None:
            return None
        return msgspec.convert(self._backups.status(), type=BackupsView)

    def session(self, tenant: Tenant, client: bytes) -> SessionView | None:
        for here in self._sessions(tenant):
            prg = here.leader
            session = prg.broker.state.sessions.get(client)
            if session is not None:
                return _session_view(prg, session)
            if client in here.connections:
                return SessionView(**msgspec.structs.asdict(_volatile(prg, client)))
        return None

    def sessions(self, tenant: Tenant, wanted: bytes, after: bytes, limit: int) -> SessionPage:
        """List the sessions of a tenant: connected clients, and those that will come back."""

        def found() -> Iterator[tuple[bytes, tuple[PartitionLeader, Session | None]]]:
            for here in self._sessions(tenant):
                prg = here.leader
                sessions = prg.broker.state.sessions
                for client_id, session in sessions.items():
                    if wanted in client_id:
                        yield client_id, (prg, session)
                for client_id in here.connections:
                    if wanted in client_id and client_id not in sessions:
                        yield client_id, (prg, None)

        def row(client_id: bytes, at: tuple[PartitionLeader, Session | None]) -> SessionRow:
            prg, session = at
            return _volatile(prg, client_id) if session is None else _session(prg, session)

        items, more = _page(found(), after, limit, row)
        return SessionPage(items=items, after=more)

    def clients(self, tenant: Tenant, wanted: bytes, after: bytes, limit: int) -> ClientPage:
        """List the clients that are connected to partitions that this node leads."""

        def found() -> Iterator[tuple[bytes, tuple[PartitionLeader, MqttConnection]]]:
            for here in self._sessions(tenant):
                for client_id, connection in here.connections.items():
                    assert isinstance(connection, MqttConnection)
                    if wanted in client_id and connection.phase is ConnectionPhase.LIVE:
                        yield client_id, (here.leader, connection)

        items, more = _page(found(), after, limit, _client)
        elsewhere = [
            LedElsewhere(partition=prg.number, leader=prg.leader_node)
            for prg in tenant.prgs
            if not prg.leading
        ]
        return ClientPage(items=items, after=more, elsewhere=elsewhere)

    def retained(self, tenant: Tenant, wanted: bytes, after: bytes, limit: int) -> RetainedPage:
        def found() -> Iterator[tuple[bytes, tuple[PartitionLeader, Message]]]:
            for prg in tenant.prgs:
                for topic, message in prg.broker.state.retained.match(wanted or b"#"):
                    yield topic, (prg, message)

        items, more = _page(found(), after, limit, _retained)
        return RetainedPage(items=items, after=more)

    def topics(self, tenant: Tenant, wanted: bytes, after: bytes, limit: int) -> TopicPage:
        """List the filters that somebody subscribes to, with how many do."""
        seen: dict[bytes, int] = {}
        for prg in tenant.prgs:
            for topic_filter, subscribers in prg.broker.state.filters.items():
                if not wanted or topic_filter == wanted or matches(wanted, topic_filter):
                    seen[topic_filter] = seen.get(topic_filter, 0) + len(subscribers)

        def row(topic_filter: bytes, count: int) -> TopicRow:
            return TopicRow(filter=topic_filter.decode(), subscribers=count)

        items, more = _page(seen.items(), after, limit, row)
        return TopicPage(items=items, after=more)

    def _sessions(self, tenant: Tenant) -> list[PartitionSessions[TenantClient]]:
        return self._service.mqtt.tenants[tenant.name].sessions

    def _prgs(self) -> Iterator[PartitionLeader]:
        for tenant in self._service.tenants.values():
            yield from tenant.prgs


def _page(
    found: Iterable[tuple[bytes, Item]],
    after: bytes,
    limit: int,
    row: Callable[[bytes, Item], Made],
) -> tuple[list[Made], str | None]:
    """Make the rows behind `after`, in order; say where the next page begins, if there is one."""
    behind = (each for each in found if each[0] > after)
    page = nsmallest(limit + 1, behind, key=lambda each: each[0])
    rows = [row(key, item) for key, item in page[:limit]]
    return rows, page[limit - 1][0].decode() if len(page) > limit else None


def _partition(here: PartitionSessions[TenantClient]) -> PartitionRow:
    prg = here.leader
    state = prg.broker.state
    return PartitionRow(
        tenant=prg.tenant.name,
        partition=prg.number,
        group=int(prg.group.partition_id),
        leader=prg.leader_node,
        serves=prg.leading and not prg.closed,
        state="stopped" if prg.group.replica.failed is not None else "running",
        sessions=len(state.sessions),
        connected=len(here.connections),
        filters=len(state.filters),
        retained=len(state.retained),
        queued=sum(len(session.outbound) for session in state.sessions.values()),
        channels={
            str(peer): len(outbox.items) for peer, outbox in state.channels.outboxes().items()
        },
        applied_index=state.applied_index,
        routing_epoch=state.routing_epoch,
        prg_count=state.prg_count,
        open=state.is_open,
        waits_for=list(waits_for(state)),
    )


def _digest(prg: PartitionLeader) -> DigestRow:
    broker = prg.broker
    return DigestRow(
        tenant=prg.tenant.name,
        partition=prg.number,
        index=broker.applied_index,
        digest=broker.digest().hex(),
    )


def _session(prg: PartitionLeader, session: Session) -> SessionRow:
    return SessionRow(
        client_id=session.client_id.decode(),
        partition=prg.number,
        connected=session.connected,
        expiry_seconds=session.expiry_seconds,
        epoch=session.epoch,
        subscriptions=len(session.subscriptions),
        queued=len(session.outbound.queue),
        in_flight=len(session.outbound.in_flight),
        queued_bytes=session.outbound.weight,
        unreleased=len(session.received),
        full=session.client_id in prg.broker.state.routes.full,
    )


def _session_view(prg: PartitionLeader, session: Session) -> SessionView:
    filters = [
        FilterRow(filter=key.decode(), qos=spec.qos, identifier=spec.identifier)
        for key, spec in session.subscriptions.items()
    ]
    return SessionView(
        **msgspec.structs.asdict(_session(prg, session)),
        filters=filters,
        has_will=session.will is not None,
        ends_at_ms=session.ends_at_ms(),
    )


def _volatile(prg: PartitionLeader, client_id: bytes) -> SessionRow:
    """A session that ends with its connection is in no log."""
    return SessionRow(
        client_id=client_id.decode(), partition=prg.number, connected=True, expiry_seconds=0
    )


def _client(client_id: bytes, at: tuple[PartitionLeader, MqttConnection]) -> ClientRow:
    prg, connection = at
    peer = connection.peer
    return ClientRow(
        client_id=client_id.decode(),
        partition=prg.number,
        identity=connection.identity,
        transport="" if peer is None else peer.transport,
        address="" if peer is None else peer.address,
        protocol=_PROTOCOLS[int(connection.version)],
        keep_alive_seconds=connection.agreed.keep_alive_seconds,
        expiry_seconds=connection.expiry_seconds,
        queued_bytes=connection.queued_bytes,
    )


def _retained(topic: bytes, at: tuple[PartitionLeader, Message]) -> RetainedRow:
    prg, message = at
    return RetainedRow(
        topic=topic.decode(),
        qos=message.qos,
        bytes=len(message.payload),
        payload=payload_of(message.payload[:_SHOWN_BYTES_MAX]),
        partition=prg.number,
    )


def payload_of(data: bytes) -> Payload:
    """Show bytes as text where they are text."""
    try:
        return Payload(text=data.decode())
    except UnicodeDecodeError:
        return Payload(base64=data)
