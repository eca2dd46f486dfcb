"""What people ask a broker node: its state, sessions, topics and retained messages, page by page.

Every node holds a replica of every partition, so each answers for all of them; who is connected
is known to the leaders alone.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from quantum.broker import waits_for
from quantum.broker.session import Session
from quantum.node.tenant_pages import TenantPages
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions
from quantum.protocols.mqtt.session.tenant_sessions import TenantClient
from quantum.topics import matches

if TYPE_CHECKING:
    from quantum.node.archiving import Archiving
    from quantum.node.feeding import Feeding
    from quantum.node.service import BrokerService

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1_000
_PREFIX: Final = "/broker/"

Answer = tuple[int, object]


class BrokerPages:
    """The pages below `/broker/` of a node's admin port."""

    def __init__(
        self,
        service: BrokerService,
        archiving: Archiving | None = None,
        feeding: Feeding | None = None,
    ) -> None:
        self._service = service
        self._archiving = archiving
        self._feeding = feeding
        self._tenants = TenantPages(service)

    def get(self, target: str) -> Answer | asyncio.Future[Answer] | None:
        """Answer a GET, or return None for a page that is not ours."""
        about_tenants = self._tenants.get(target)
        if about_tenants is not None:
            return about_tenants
        parts = urlsplit(target)
        if not parts.path.startswith(_PREFIX):
            return None
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        name, _, rest = parts.path.removeprefix(_PREFIX).partition("/")
        try:
            if name == "status" and not rest:
                return 200, self._status()
            if name == "digests" and not rest:
                return 200, {"partitions": [_digest(prg) for prg in self._prgs()]}
            if name == "archive" and not rest and self._archiving is not None:
                return 200, self._archiving.status()
            if name == "feed" and self._feeding is not None:
                return self._feed(self._feeding, rest, query)
            if name == "sessions" and rest:
                return self._session(unquote(rest))
            if name in ("sessions", "retained", "topics") and not rest:
                return 200, self._list(name, query)
        except ValueError as error:
            return 400, {"error": str(error)}
        return 404, {"error": "no such page"}

    def _feed(
        self, feeding: Feeding, rest: str, query: dict[str, str]
    ) -> Answer | asyncio.Future[Answer]:
        if not rest:
            return feeding.directory()
        tenant, _, number = rest.partition("/")
        return feeding.page(tenant, number, query)

    def post(self, target: str) -> Answer | None:
        """Carry out `POST /broker/sessions/<client>/kick`, and what `TenantPages` knows."""
        about_tenants = self._tenants.post(target)
        if about_tenants is not None:
            return about_tenants
        path = urlsplit(target).path
        if not path.startswith(_PREFIX + "sessions/") or not path.endswith("/kick"):
            return None
        client = unquote(path.removeprefix(_PREFIX + "sessions/").removesuffix("/kick"))
        for sessions in self._sessions_here():
            if sessions.kick(client.encode()):
                tenant = sessions.leader.tenant.name
                self._service.note_act(
                    "SessionEnded", "by an operator", target=client, tenant=tenant
                )
                return 202, {"client_id": client}
        return 404, {"error": "no such session is served by this node", "client_id": client}

    def _prgs(self) -> Iterator[PartitionLeader]:
        for tenant in self._service.tenants.values():
            yield from tenant.prgs

    def _sessions_here(self) -> Iterator[PartitionSessions[TenantClient]]:
        for tenant in self._service.mqtt.tenants.values():
            yield from tenant.sessions

    def _status(self) -> dict[str, Any]:
        service = self._service
        room = service.node.disk_room
        return {
            "connections": service.mqtt.connections,
            "dropped": service.mqtt.dropped,
            "faults": service.mqtt.faults,
            "partitions": [_partition(each) for each in self._sessions_here()],
            "stopped": [
                {"group": int(group.partition_id), "cause": group.replica.failed}
                for group in service.node.groups.values()
                if group.replica.failed is not None
            ],
            "disk": {"level": str(room.level), "free_bytes": room.free_bytes},
            "closed": sorted({words for prg in self._prgs() for words in prg.closed.values()}),
        }

    def _session(self, client: str) -> Answer:
        for sessions in self._sessions_here():
            prg = sessions.leader
            session = prg.broker.state.sessions.get(client.encode())
            if session is not None:
                return 200, _session(prg, session, whole=True)
            if client.encode() in sessions.connections:
                return 200, _volatile(prg, client.encode())
        return 404, {"error": "no such session", "client_id": client}

    def _list(self, name: str, query: dict[str, str]) -> dict[str, Any]:
        limit = _number(query.get("limit"), PAGE_DEFAULT)
        after = query.get("after", "").encode()
        wanted = query.get("filter", "").encode()
        if name == "sessions":
            rows = self._sessions(wanted)
        elif name == "retained":
            rows = self._retained(wanted or b"#")
        else:
            rows = self._topics(wanted)
        page = sorted((row for row in rows if row[0] > after), key=lambda row: row[0])[: limit + 1]
        found = [row for _, row in page[:limit]]
        return {name: found, "after": page[limit - 1][0].decode() if len(page) > limit else None}

    def _sessions(self, wanted: bytes) -> Iterable[tuple[bytes, dict[str, Any]]]:
        for sessions in self._sessions_here():
            prg = sessions.leader
            for client_id, session in prg.broker.state.sessions.items():
                if wanted in client_id:
                    yield client_id, _session(prg, session, whole=False)
            for client_id in sessions.connections:
                if wanted in client_id and client_id not in prg.broker.state.sessions:
                    yield client_id, _volatile(prg, client_id)

    def _retained(self, wanted: bytes) -> Iterable[tuple[bytes, dict[str, Any]]]:
        for prg in self._prgs():
            for topic, message in prg.broker.state.retained.match(wanted):
                yield (
                    topic,
                    {
                        "topic": topic.decode(),
                        "qos": message.qos,
                        "bytes": len(message.payload),
                        "payload": _shown(message.payload),
                        "partition": prg.number,
                    },
                )

    def _topics(self, wanted: bytes) -> Iterable[tuple[bytes, dict[str, Any]]]:
        """List the filters that somebody subscribes to, with how many do."""
        seen: dict[bytes, int] = {}
        for prg in self._prgs():
            for topic_filter, subscribers in prg.broker.state.filters.items():
                if not wanted or topic_filter == wanted or matches(wanted, topic_filter):
                    seen[topic_filter] = seen.get(topic_filter, 0) + len(subscribers)
        for topic_filter, count in seen.items():
            yield topic_filter, {"filter": topic_filter.decode(), "subscribers": count}


def _number(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdigit() or not 0 < int(text) <= PAGE_MAX:
        raise ValueError(f"limit must be a number from 1 to {PAGE_MAX}")
    return int(text)


def _partition(sessions: PartitionSessions[TenantClient]) -> dict[str, Any]:
    prg = sessions.leader
    state = prg.broker.state
    return {
        "tenant": prg.tenant.name,
        "partition": prg.number,
        "group": int(prg.group.partition_id),
        "leader": prg.leader_node,
        "serves": prg.leading and not prg.closed,
        "state": "stopped" if prg.group.replica.failed is not None else "running",
        "sessions": len(state.sessions),
        "connected": len(sessions.connections),
        "filters": len(state.filters),
        "retained": len(state.retained),
        "queued": sum(len(session.outbound) for session in state.sessions.values()),
        "streams": {
            str(peer): len(outbox.items) for peer, outbox in state.channels.outboxes().items()
        },
        "applied_index": state.applied_index,
        "routing_epoch": state.routing_epoch,
        "prg_count": state.prg_count,
        "open": state.is_open,
        "waits_for": waits_for(state),
    }


def _digest(prg: PartitionLeader) -> dict[str, Any]:
    """Name the state of a partition at this moment; `quantum log replay` gives the same."""
    broker = prg.broker
    return {
        "tenant": prg.tenant.name,
        "partition": prg.number,
        "index": broker.applied_index,
        "digest": broker.digest().hex(),
    }


def _session(prg: PartitionLeader, session: Session, *, whole: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "client_id": session.client_id.decode(),
        "partition": prg.number,
        "connected": session.connected,
        "expiry_seconds": session.expiry_seconds,
        "epoch": session.epoch,
        "subscriptions": len(session.subscriptions),
        "queued": len(session.outbound.queue),
        "in_flight": len(session.outbound.in_flight),
        "queued_bytes": session.outbound.weight,
        "unreleased": len(session.received),
        "full": session.client_id in prg.broker.state.routes.full,
    }
    if whole:
        row["filters"] = [
            {"filter": key.decode(), "qos": spec.qos, "identifier": spec.identifier}
            for key, spec in session.subscriptions.items()
        ]
        row["has_will"] = session.will is not None
        row["ends_at_ms"] = session.ends_at_ms()
    return row


def _volatile(prg: PartitionLeader, client_id: bytes) -> dict[str, Any]:
    return {
        "client_id": client_id.decode(),
        "partition": prg.number,
        "connected": True,
        "expiry_seconds": 0,
        "epoch": 0,
        "subscriptions": 0,
        "queued": 0,
        "in_flight": 0,
        "queued_bytes": 0,
        "unreleased": 0,
        "full": False,
    }


def _shown(payload: bytes) -> dict[str, str]:
    """Show a payload as text where it is text, at most its first kibibyte."""
    head = payload[:1024]
    try:
        return {"text": head.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(head).decode()}
