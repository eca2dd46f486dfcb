"""Why a client does not receive, is refused, or is slow: what stands in its way, in sentences.

Facts are read from what really holds a client back (the levels that hold it, its window, the
rates it owes, the rules, who leads); `explain_client` puts them into words and into an order:
the first cause is the one to look at first. Nothing is guessed: where nothing is in the way, it
says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from clustor.runtime.telemetry.node import NodeTelemetry
from clustor.runtime.telemetry.why import GroupWhy
from clustor.telemetry import IncidentClass, Question
from quantum.node.access_page import AccessPage
from quantum.node.telemetry import BrokerTelemetry
from quantum.partition.gate import decide_exchange
from quantum.protocols.mqtt.session.connection import Connection
from quantum.protocols.mqtt.session.tenant_sessions import TenantSessions
from quantum.tenancy import Rate
from quantum.tenants.recent import Remark

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.node.service import BrokerService
    from quantum.partition.leader import PartitionLeader

_PREFIX: Final = "/clients/"
_SUFFIX: Final = "/why"
_FORBIDDEN_SHOWN_MAX: Final = 5
_MS_PER_TICK: Final = 10
_ILL_QUESTIONS: Final = (Question.DISK_BLOCKED, Question.QUARANTINED, Question.CREDIT_ZERO)
"""What keeps a partition from its work; the first that holds is the cause."""
_LARGER_QUEUES: Final = "queues of new tenants are as large as `queue_messages_max` says"
_RECENT_MS: Final = 600_000
"""What happened longer ago than this explains nothing about now."""

Answer = tuple[int, object]


class ClientClause(StrEnum):
    """What stands in a client's way."""

    NO_LEADER = "NoLeader"
    LEADER_UNREACHABLE = "LeaderUnreachable"
    LEADER_STARTING = "LeaderStarting"
    NOT_CONNECTED = "NotConnected"
    UNKNOWN = "UnknownClient"
    RECEIVE_WINDOW_FULL = "ReceiveWindowFull"
    NOT_READING = "ClientNotReading"
    QUEUE_FULL = "QueueFull"
    RATE = "RateLimited"
    BACKLOG = "LogBacklog"
    SLOW_SUBSCRIBERS = "SlowSubscribers"
    TURN_SHARE = "TurnShare"
    CREDITS = "NoCredits"
    FORWARD = "ForwardWaits"
    CLOSED = "PermanentDurability"
    PARTITION_ILL = "PartitionIll"
    SHUT = "TenantShut"
    ACL = "NotAuthorized"
    CONGESTED = "TopicCongested"
    NO_SUBSCRIPTIONS = "NoSubscriptions"
    RECENTLY = "Recently"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing in the way, and what helps."""

    clause: ClientClause
    sentence: str
    remedy: str = ""
    is_wrong: bool = True


@dataclass(frozen=True, slots=True)
class Ill:
    """What keeps one partition from its work: the group's own word."""

    partition: int
    sentence: str
    remedy: str


@dataclass(slots=True)
class ClientFacts:
    """One client as one node sees it. What a node that does not serve it cannot know is None."""

    client_id: str
    tenant: str
    partition: int
    group: int
    leader_node: int | None
    is_served_here: bool
    is_led_here: bool
    is_leader_reachable: bool
    group_sentence: str = ""
    closed: dict[str, str] = field(default_factory=dict)
    """What its partition may not do now, and why: the control plane's copy, or its group."""
    ills: list[Ill] = field(default_factory=list)
    """What is wrong with its tenant's partitions as they are here, its own first."""
    fenced: str = ""
    """What it asked for that is closed; it is left unread."""
    shut: str = ""
    """Why its tenant is not served."""
    has_session: bool = False
    is_connected: bool = False
    subscriptions: int = 0
    # Towards the client.
    queued: int = 0
    queue_max: int = 0
    is_queue_full: bool = False
    under_way: int = 0
    window: int = 0
    ceiling: int = 0
    waiting: int = 0
    is_window_full: bool = False
    is_writable: bool = True
    # From the client.
    unanswered: int = 0
    is_held: bool = False
    rates: list[tuple[str, str, int]] = field(default_factory=list)
    backlogs: list[int] = field(default_factory=list)
    is_held_by_queues: bool = False
    held_by_full: str = ""
    """The lasting session whose full queue it waits for (C24)."""
    slowed_by: str = ""
    """The subscriber that it is too fast for."""
    is_held_by_share: bool = False
    stalled: int = 0
    credit_sentence: str = ""
    forwards: list[tuple[int, int, int, str]] = field(default_factory=list)
    """Partition, publishes that wait for it, for how many milliseconds, and what is with it."""
    forbidden: list[str] = field(default_factory=list)
    topic: str | None = None
    topic_ground: str | None = None
    topic_congested: bool = False
    remarks: list[Remark] = field(default_factory=list)
    now_ms: int = 0


def explain_client(facts: ClientFacts) -> list[Cause]:
    """Say what stands in a client's way, the first thing first."""
    if not facts.is_served_here:
        causes = _elsewhere(facts)
    elif not facts.is_connected:
        causes = _away(facts)
    else:
        causes = [*_slow(facts), *_not_receiving(facts), *_refused(facts)]
    causes = [*_ills(facts), *_closed(facts), *causes, *_recently(facts)]
    if not any(cause.is_wrong for cause in causes) and facts.is_served_here:
        words = "nothing stands in its way here: what is published to it leaves at once"
        if not facts.is_connected:
            words = "it is not connected, and nothing else is wrong"
        causes.insert(0, Cause(ClientClause.NONE, words, is_wrong=False))
    return causes


def _ills(facts: ClientFacts) -> list[Cause]:
    """Say once what is wrong with partitions: one disk under many of them is one cause."""
    partitions: dict[tuple[str, str], list[int]] = {}
    for ill in facts.ills:
        partitions.setdefault((ill.sentence, ill.remedy), []).append(ill.partition)
    causes = []
    for (sentence, remedy), numbers in partitions.items():
        its = "its own" if facts.partition in numbers else "other"
        shown = ", ".join(map(str, sorted(numbers)))
        words = f"partition {shown} of its tenant ({its}) does not work: {sentence}"
        causes.append(Cause(ClientClause.PARTITION_ILL, words, remedy))
    return causes


def _closed(facts: ClientFacts) -> list[Cause]:
    """Say what the control plane's word, or its silence, keeps from it."""
    causes = []
    if facts.shut:
        causes.append(Cause(ClientClause.SHUT, facts.shut, "see `quantum admin tenants show`"))
    remedy = "bring the control plane back; see `quantum why GROUP`"
    if facts.fenced:
        words = f"it is left unread, and must go if this lasts: {facts.fenced}"
        causes.append(Cause(ClientClause.CLOSED, words, remedy))
    elif facts.closed:
        words = f"{', '.join(facts.closed)} must wait: {next(iter(facts.closed.values()))}"
        causes.append(Cause(ClientClause.CLOSED, words, remedy))
    return causes


def _elsewhere(facts: ClientFacts) -> list[Cause]:
    where = f"partition {facts.partition} of tenant {facts.tenant} (group {facts.group})"
    if facts.leader_node is None:
        words = f"its session lives in {where}, which has no leader: {facts.group_sentence}"
        return [Cause(ClientClause.NO_LEADER, words, "bring back a quorum of the nodes")]
    if facts.is_led_here:
        words = f"{where} has just begun its term here and does not serve yet"
        return [Cause(ClientClause.LEADER_STARTING, words, "wait a moment")]
    if not facts.is_leader_reachable:
        words = f"{where} is led by node {facts.leader_node}, which this node cannot reach"
        return [Cause(ClientClause.LEADER_UNREACHABLE, words, "look at the network between them")]
    words = f"{where} is served by node {facts.leader_node}: it knows more"
    return [Cause(ClientClause.NONE, words, is_wrong=False)]


def _away(facts: ClientFacts) -> list[Cause]:
    if not facts.has_session:
        words = "it is not connected and has no session: whatever is published meanwhile is lost"
        remedy = "connect it, with a session expiry if it should get what it misses"
        return [Cause(ClientClause.UNKNOWN, words, remedy)]
    words = f"it is not connected; {facts.queued} messages wait for it"
    causes = [Cause(ClientClause.NOT_CONNECTED, words, "connect it")]
    return causes + _queue_full(facts)


def _slow(facts: ClientFacts) -> list[Cause]:
    """Say what keeps its publishes waiting."""
    causes = []
    for scope, rate, rest_ms in facts.rates:
        whose = "its own" if scope == "connection" else "its tenant's"
        words = f"it is left unread for {rest_ms} ms more: {whose} rate of {rate} is exceeded"
        setting = f"connection_rates.{rate}" if scope == "connection" else f"rates.{rate}"
        causes.append(Cause(ClientClause.RATE, words, f"send less, or raise `{setting}`"))
    for partition in facts.backlogs:
        words = f"it is left unread until partition {partition} has logged what waits there"
        causes.append(Cause(ClientClause.BACKLOG, words, "look at the group's disk and quorum"))
    if facts.held_by_full:
        words = f"it is left unread: the queue of session {facts.held_by_full} is full"
        remedy = f"connect {facts.held_by_full}, or end its session; {_LARGER_QUEUES}"
        causes.append(Cause(ClientClause.QUEUE_FULL, words, remedy))
    if facts.slowed_by:
        words = f"it is left unread until {facts.slowed_by} has read what waits for it"
        remedy = f"look why {facts.slowed_by} is slower than its publishers"
        causes.append(Cause(ClientClause.SLOW_SUBSCRIBERS, words, remedy))
    if facts.is_held_by_queues:
        words = "it is left unread until its tenant's slow subscribers have caught up"
        causes.append(Cause(ClientClause.SLOW_SUBSCRIBERS, words, "look for slow subscribers"))
    if facts.is_held_by_share:
        words = "it is left unread for the rest of this turn: its tenant had its share"
        causes.append(Cause(ClientClause.TURN_SHARE, words, is_wrong=False))
    if facts.stalled:
        words = f"{facts.stalled} commands wait for its partition's log: {facts.credit_sentence}"
        causes.append(Cause(ClientClause.CREDITS, words, "see `quantum why GROUP`"))
    for partition, count, waited_ms, state in facts.forwards:
        words = (
            f"{count} publishes of its partition's clients have waited {waited_ms} ms "
            f"for partition {partition}, which owns their topics{state}"
        )
        causes.append(Cause(ClientClause.FORWARD, words, f"look at partition {partition}"))
    return causes


def _not_receiving(facts: ClientFacts) -> list[Cause]:
    """Say what keeps messages from it."""
    causes = _queue_full(facts)
    if not facts.is_writable:
        words = f"it does not read its connection; {facts.waiting} messages wait"
        causes.append(Cause(ClientClause.NOT_READING, words, "look at the client or its network"))
    if facts.is_window_full:
        words = (
            f"its receive window is full: {facts.under_way} messages are unacknowledged and "
            f"{facts.window} may be (at most {facts.ceiling}); {facts.waiting + facts.queued} wait"
        )
        remedy = "let it acknowledge what it has, or connect with a larger Receive Maximum"
        causes.append(Cause(ClientClause.RECEIVE_WINDOW_FULL, words, remedy))
    if not facts.subscriptions:
        words = "it subscribes to nothing"
        causes.append(Cause(ClientClause.NO_SUBSCRIPTIONS, words, is_wrong=False))
    return causes


def _queue_full(facts: ClientFacts) -> list[Cause]:
    if not facts.is_queue_full:
        return []
    words = (
        f"its queue is full ({facts.queued} messages, {facts.queue_max} may be): "
        "publishes to what it subscribes to wait, and are refused with 0x97 at last"
    )
    return [Cause(ClientClause.QUEUE_FULL, words, f"let it read; {_LARGER_QUEUES}")]


def _refused(facts: ClientFacts) -> list[Cause]:
    causes = []
    if facts.topic_ground is not None:
        words = f"it may not publish to {facts.topic}: {facts.topic_ground}"
        causes.append(Cause(ClientClause.ACL, words, "change the tenant's access rules"))
    if facts.topic_congested:
        words = f"publishes to {facts.topic} are refused with 0x97: a subscriber's queue is full"
        causes.append(Cause(ClientClause.CONGESTED, words, "look for the subscriber that is full"))
    if facts.forbidden:
        shown = ", ".join(facts.forbidden[:_FORBIDDEN_SHOWN_MAX])
        words = f"the access rules forbid subscriptions that it has: {shown}"
        causes.append(Cause(ClientClause.ACL, words, "change the tenant's access rules"))
    return causes


def _recently(facts: ClientFacts) -> list[Cause]:
    remarks = [each for each in facts.remarks if facts.now_ms - each.at_ms <= _RECENT_MS]
    refusals = [each for each in remarks if not each.what.startswith("its connection")]
    causes = []
    for remark in refusals[-3:]:
        clause = ClientClause.ACL if "REFUSED" in remark.what else ClientClause.RECENTLY
        causes.append(Cause(clause, f"{_ago(facts, remark)} it was refused: {remark.what}"))
    ends = [each for each in remarks if each.what.startswith("its connection")]
    for remark in ends[-1:]:
        words = f"{_ago(facts, remark)} {remark.what}"
        causes.append(Cause(ClientClause.RECENTLY, words, is_wrong=not facts.is_connected))
    return causes


def _ago(facts: ClientFacts, remark: Remark) -> str:
    return f"{max(0, facts.now_ms - remark.at_ms) // 1000} s ago"


# Reading the facts.


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
            facts.group_sentence = self._sentence(prg, Question.NOT_LEADER)
        self._read_session(facts, prg, client_id)
        home = service.mqtt.tenants[tenant.name]
        connection = home.sessions[prg.number].connections.get(client_id)
        if connection is not None:
            assert isinstance(connection, Connection)
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

    def _sentence(self, prg: PartitionLeader, question: Question) -> str:
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
        self, facts: ClientFacts, home: TenantSessions, prg: PartitionLeader, connection: Connection
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
            facts.credit_sentence = self._sentence(prg, Question.CREDIT_ZERO)
        for number, forwards in prg.forwards.items():
            if len(forwards) and forwards.waited_ticks > 1:
                owner = tenant.prgs[number]
                held = decide_exchange(prg.blocked_reason, forwards.blocked_reason)
                state = f"; the {held.side} side holds it: {held.reason}" if held else ""
                if owner.leader_node is None:
                    state = " and has no leader: " + self._sentence(owner, Question.NOT_LEADER)
                waited_ms = forwards.waited_ticks * _MS_PER_TICK
                facts.forwards.append((number, len(forwards), waited_ms, state))


def _shown(name: bytes | None) -> str:
    return "" if name is None else name.decode(errors="replace")


def _slowed_by(home: TenantSessions, connection: Connection) -> bytes | None:
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
        watch.sources.append(BrokerTelemetry(service).families)
        service.on_full = lambda prg, session: watch.alert(
            IncidentClass.QUEUE_FULL, prg.group, {"tenant": prg.tenant.name, "session": session}
        )
        watch.more += [ClientWhy(service, watch.whys).get, AccessPage(service).get]
