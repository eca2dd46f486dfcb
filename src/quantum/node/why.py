"""Why a client does not receive, is refused, or is slow: what stands in its way, in sentences.

Facts are read from what really holds a client back (the levels that hold it, its window, the
rates it owes, the rules, who leads); `client_causes` puts them into words and into an order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from clustor.runtime.telemetry.node import NodeTelemetry
from clustor.runtime.telemetry.why import GroupWhy
from clustor.telemetry import IncidentClass, WhyQuestion
from quantum.node.access_page import AccessPage
from quantum.node.client_causes import ClientFacts, Ill, explain_client
from quantum.node.group_lags import GroupLags
from quantum.node.telemetry import BrokerTelemetry
from quantum.partition.gate import decide_exchange
from quantum.protocols.mqtt.session.connection import MqttConnection
from quantum.protocols.mqtt.session.tenant_sessions import TenantSessions
from quantum.tenancy import Rate

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.node.service import BrokerService
    from quantum.partition.leader import PartitionLeader

_PREFIX: Final = "/clients/"
_SUFFIX: Final = "/why"
_MS_PER_TICK: Final = 10
_ILL_QUESTIONS: Final = (WhyQuestion.DISK_BLOCKED, WhyQuestion.QUARANTINED, WhyQuestion.CREDIT_ZERO)
"""What keeps a partition from its work; the first that holds is the cause."""

Answer = tuple[int, object]


class ClientWhy:
    """Answers `GET /clients/<client id>/why[?tenant=…&topic=…]`."""

    def __init__(self, service: BrokerService, whys: GroupWhy) -> None:
        self._service = service
        self._whys = whys

    def get(self, path: str, query: dict[str, str]) -> Answer | None:
        """Answer, or return None for a page that is not ours."""
        if not path.startswith(_PREFIX) or not path.endswith(_SUFFIX):
            return None
        client = unquote(path.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        tenant = self._tenant(query.get("tenant"), client.encode())
        if tenant is None:
            return 404, {"error": "no such tenant", "tenant": query.get("tenant", "")}
        facts = self.facts(tenant, client.encode(), query.get("topic"))
        return 200, self._page(facts)

    def _tenant(self, name: str | None, client_id: bytes) -> Tenant | None:
        """Return the tenant that is named, or one that knows the client, or the first."""
        tenants = self._service.tenants
        if name is not None:
            return tenants.get(name)
        for tenant in tenants.values():
            prg = tenant.session_prg(client_id)
            sessions = self._service.mqtt.tenants[tenant.name].sessions[prg.number]
            if client_id in sessions.connections or client_id in prg.broker.state.sessions:
                return tenant
        return next(iter(tenants.values()), None)

    def _page(self, facts: ClientFacts) -> dict[str, object]:
        causes = explain_client(facts)
        return {
            "client_id": facts.client_id,
            "tenant": facts.tenant,
            "partition": facts.partition,
            "group": facts.group,
            "leader": facts.leader_node,
            "served_here": facts.is_served_here,
            "connected": facts.is_connected,
            "session": facts.has_session,
            "causes": causes,
            "wrong": any(cause.is_wrong for cause in causes),
        }

    def facts(self, tenant: Tenant, client_id: bytes, topic: str | None = None) -> ClientFacts:
        """Read what is known here about one client."""
        prg = tenant.session_prg(client_id)
        service, leader = self._service, prg.leader_node
        facts = ClientFacts(
            client_id=client_id.decode(errors="replace"),
            tenant=tenant.name,
            partition=prg.number,
            group=int(prg.group.partition_id),
            leader_node=leader,
            is_served_here=prg.leading,
            is_led_here=service.is_local(leader),
            is_leader_reachable=leader is not None and service.reaches(leader),
            topic=topic,
            remarks=service.recent.of(client_id),
            now_ms=service.now_ms(),
        )
        if leader is None:
            facts.group_sentence = self._sentence(prg, WhyQuestion.NOT_LEADER)
        self._read_session(facts, prg, client_id)
        home = service.mqtt.tenants[tenant.name]
        connection = home.sessions[prg.number].connections.get(client_id)
        if connection is not None:
            assert isinstance(connection, MqttConnection)
            facts.is_connected = True
            self._read_connection(facts, home, prg, connection)
        facts.shut = tenant.shut
        facts.ills = list(self._ills(tenant, prg))
        if prg.leading:
            facts.closed = {str(each.value): words for each, words in prg.closed.items()}
            self._read_partition(facts, tenant, prg)
        return facts

    def _ills(self, tenant: Tenant, own: PartitionLeader) -> Iterator[Ill]:
        """Ask the groups of its tenant's partitions themselves, its own first."""
        for prg in sorted(tenant.prgs, key=lambda each: each is not own):
            for question in _ILL_QUESTIONS:
                why = self._whys.explain(prg.group, question)[1]
                if why.holds:
                    yield Ill(prg.number, why.sentence, why.remedy)
                    break

    def _sentence(self, prg: PartitionLeader, question: WhyQuestion) -> str:
        return self._whys.explain(prg.group, question)[1].sentence

    @staticmethod
    def _read_session(facts: ClientFacts, prg: PartitionLeader, client_id: bytes) -> None:
        state = prg.broker.state
        session = state.sessions.get(client_id)
        if session is None:
            return
        facts.has_session = True
        facts.subscriptions = len(session.subscriptions)
        facts.queued = len(session.outbound.queue)
        facts.queue_max = state.settings.queue_messages_max
        facts.is_queue_full = client_id in state.routes.full

    def _read_connection(
        self,
        facts: ClientFacts,
        home: TenantSessions,
        prg: PartitionLeader,
        connection: MqttConnection,
    ) -> None:
        tenant = home.tenant
        facts.is_writable = connection.writable
        facts.unanswered = connection.unanswered
        facts.is_held = connection.is_held
        facts.fenced = home.fenced_for(connection)
        if connection.outward is not None:
            sight = connection.outward.sight()
            facts.under_way, facts.window, facts.ceiling = sight[:3]
            facts.waiting, facts.is_window_full = sight.waiting, sight.is_full
        session = prg.broker.state.sessions.get(connection.client_id)
        permit = connection.permit
        if session is not None:
            forbidden = permit.forbidden(list(session.subscriptions))
            facts.forbidden = [each.decode(errors="replace") for each in forbidden]
        if facts.topic is not None:
            judged = permit.judge(facts.topic.encode())
            refused = judged is not None and not judged.allowed
            facts.topic_ground = judged.ground.value if judged is not None and refused else None
            facts.topic_congested = self._is_congested(tenant, prg, facts.topic.encode())
        now_ms = self._service.tick_ms
        until_ms = tenant.rests_until(connection)
        if until_ms is not None:
            owed = [] if permit.gate is None else permit.gate.owed(now_ms)
            facts.rates = [(who, str(rate), rest_ms) for who, rate, rest_ms in owed] or [
                ("tenant", str(Rate.SUBSCRIBES), max(0, until_ms - now_ms))
            ]
        facts.backlogs = [each.number for each in tenant.prgs if each.backlog.holds(connection)]
        facts.is_held_by_queues = home.queued.holds(connection)
        facts.held_by_full = _shown(home.full.held_up_by(connection))
        facts.slowed_by = _shown(_slowed_by(home, connection))
        facts.is_held_by_share = tenant.share is not None and tenant.share.holds(connection)

    @staticmethod
    def _is_congested(tenant: Tenant, prg: PartitionLeader, topic: bytes) -> bool:
        owner = tenant.prgs[tenant.topic_partition(topic)]
        return topic in prg.broker.state.refusing or owner.broker.route(topic).is_blocked

    def _read_partition(self, facts: ClientFacts, tenant: Tenant, prg: PartitionLeader) -> None:
        facts.stalled = prg.stalled
        if prg.stalled:
            facts.credit_sentence = self._sentence(prg, WhyQuestion.CREDIT_ZERO)
        for number, forwards in prg.forwards.items():
            if len(forwards) and forwards.waited_ticks > 1:
                owner = tenant.prgs[number]
                held = decide_exchange(prg.blocked_reason, forwards.blocked_reason)
                state = f"; the {held.side} side holds it: {held.reason}" if held else ""
                if owner.leader_node is None:
                    state = " and has no leader: " + self._sentence(owner, WhyQuestion.NOT_LEADER)
                waited_ms = forwards.waited_ticks * _MS_PER_TICK
                facts.forwards.append((number, len(forwards), waited_ms, state))


def _shown(name: bytes | None) -> str:
    return "" if name is None else name.decode(errors="replace")


def _slowed_by(home: TenantSessions, connection: MqttConnection) -> bytes | None:
    """Name the subscriber that a publisher waits for, here or on another node."""
    here = (
        each.client_id
        for each in home.connected()
        if each.slowing is not None and each.slowing.holds(connection)
    )
    return next(here, None) or home.slowed.slowed_by(connection)


def show_broker(service: BrokerService, watch: object) -> None:
    """Let a node's telemetry show the broker's series and explain its clients too."""
    if isinstance(watch, NodeTelemetry):
        lags = GroupLags(service)
        watch.sources += [BrokerTelemetry(service).families, lags.families]
        service.on_full = lambda prg, session: watch.alert(
            IncidentClass.QUEUE_FULL, prg.group, {"tenant": prg.tenant.name, "session": session}
        )
        watch.more += [ClientWhy(service, watch.whys).get, AccessPage(service).get, lags.page]
