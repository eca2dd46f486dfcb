"""Would a message reach a client, and if not, which rule stops it: asked of what enforces it.

The node that leads the session's partition looks: it alone knows whom the client's certificate
names and how its connection stands. Whoever is asked asks that node, and looks itself where it
cannot be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from quantum.broker.commands import SubscriptionSpec
from quantum.broker.explaining import DeliveryFacts, find_delivery
from quantum.broker.full_queues import FullQueue
from quantum.node.access_page import say_decision
from quantum.node.delivery_rows import DeliveryStep, DeliveryView, MatchedSubscription
from quantum.protocols.mqtt.session.connection import MqttConnection
from quantum.tenancy import AccessDecision, Operation, Principal, ResourceKind
from quantum.types import ClientId

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.node.service import BrokerService

KIND: Final = "delivery"
_RULES_COMMAND: Final = "change the tenant's access rules: `quantum admin tenants set-acls`"
_UNROUTED: Final = "it was told to the topic's partition a moment ago, or that partition is behind"


class DeliveryQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to know.

    `publisher` is empty where nobody said who publishes. Principals are whom certificates, tokens
    or passwords name; a client that is connected is asked itself.
    """

    tenant: str
    topic: str
    client_id: str
    qos: int = 1
    publisher: str = ""
    principal: str = ""
    publisher_principal: str = ""


class DeliveryExplainer:
    """Answers on one node, for all partitions of all its tenants."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        service.questions.answerers[KIND] = self._answer

    async def explain(self, tenant: Tenant, asked: DeliveryQuestion) -> DeliveryView:
        """Let the node answer that leads the session's partition; else this one."""
        leader = tenant.session_prg(asked.client_id.encode()).leader_node
        if leader is not None and not self._service.is_local(leader):
            question = msgspec.msgpack.encode(asked)
            answer = await self._service.questions.ask(leader, KIND, question)
            if answer is not None:
                return msgspec.msgpack.decode(answer, type=DeliveryView)
        return self.look(tenant, asked)

    async def _answer(self, question: bytes) -> bytes:
        asked = msgspec.msgpack.decode(question, type=DeliveryQuestion)
        return msgspec.msgpack.encode(self.look(self._service.tenants[asked.tenant], asked))

    def look(self, tenant: Tenant, asked: DeliveryQuestion) -> DeliveryView:
        """Say what this node knows."""
        topic, client_id = asked.topic.encode(), asked.client_id.encode()
        home, owner = tenant.session_prg(client_id), tenant.prgs[tenant.topic_partition(topic)]
        facts = find_delivery(owner.broker.state, home.broker.state, topic, client_id)
        found = self._service.mqtt.tenants[tenant.name].sessions[home.number]
        connection = found.connections.get(client_id)
        assert connection is None or isinstance(connection, MqttConnection)
        named = "" if connection is None else connection.identity or ""
        looking = _Looking(tenant, asked, facts, connection, asked.principal or named)
        steps = [*looking.publishing(), *looking.receiving(is_led=home.leading)]
        stop = next((each for each in steps if not each.passes), None)
        delivered, sentence = looking.verdict(stop)
        return DeliveryView(
            tenant=tenant.name,
            topic=asked.topic,
            client_id=asked.client_id,
            qos=asked.qos,
            delivered=delivered,
            sentence=sentence,
            rule="" if stop is None else stop.rule,
            command="" if stop is None else stop.command,
            principal=looking.principal,
            connected=looking.is_connected,
            topic_partition=owner.number,
            session_partition=home.number,
            answered_by=self._service.node.node_id,
            subscriptions=[_row(each) for each in facts.subscriptions],
            captures=facts.captures,
            steps=steps,
        )


def _row(spec: SubscriptionSpec) -> MatchedSubscription:
    return MatchedSubscription(
        filter=spec.filter.decode(errors="replace"),
        qos=spec.qos,
        share=spec.share.decode(errors="replace"),
        no_local=spec.no_local,
        identifier=spec.identifier,
    )


class _Looking:
    """The steps of one question, in the order in which a message meets them."""

    def __init__(
        self,
        tenant: Tenant,
        asked: DeliveryQuestion,
        facts: DeliveryFacts,
        connection: MqttConnection | None,
        principal: str,
    ) -> None:
        self._tenant = tenant
        self._asked = asked
        self._facts = facts
        self._connection = connection
        self.principal = principal
        session = facts.session
        self.is_connected = connection is not None or (session is not None and session.connected)

    # The way in.

    def publishing(self) -> list[DeliveryStep]:
        """Say whether the topic takes the message at all."""
        return [*self._publisher(), *self._room()]

    def _publisher(self) -> list[DeliveryStep]:
        asked, guard = self._asked, self._tenant.guard
        if not asked.publisher:
            return []
        what = (Operation.PUBLISH, ResourceKind.TOPIC, asked.topic.encode())
        principal, client_id = asked.publisher_principal, asked.publisher.encode()
        decision = guard.may(principal, *what, client_id=client_id)
        whom = f"{asked.publisher} as {principal}" if principal else asked.publisher
        words = f"{whom} publishes to {asked.topic}: {say_decision(decision)}"
        return [_judged("PublishAcl", decision, words)]

    def _room(self) -> list[DeliveryStep]:
        facts, asked = self._facts, self._asked
        if asked.qos == 0:
            return []
        steps = []
        blocked = ", ".join(facts.full_clients)
        if facts.full_partitions:
            where = ", ".join(map(str, facts.full_partitions))
            blocked = " and ".join(filter(None, (blocked, f"a session of partition {where}")))
        if blocked:
            words = f"publishes above QoS 0 are refused (0x97): the queue of {blocked} is full"
            steps.append(_stops("FullQueue", words, "let it read, or end its session"))
        if facts.full_stores:
            where = ", ".join(map(str, facts.full_stores))
            words = f"the queues of partition {where} hold all that the tenant's quota lets them"
            command = "raise the quota: `quantum admin tenants set-quotas`"
            steps.append(_stops("Quota", words, command))
        return steps or [
            _passes("Room", "every queue that would get it has room, and the quota is not met")
        ]

    # The way out.

    def receiving(self, *, is_led: bool) -> list[DeliveryStep]:
        """Say whether it leaves for the client."""
        steps: list[DeliveryStep] = []
        if not is_led:
            words = "the node that leads its session's partition cannot be asked: its connection"
            steps.append(_passes("Leader", f"{words} is not known here, only what is in the log"))
        for look in (self._session, self._subscription):
            steps.append(look())
            if not steps[-1].passes:
                return steps
        steps += [*self._routed(), *self._rules(), *self._own(), *self._shares()]
        return [*steps, self._reachable()]

    def _session(self) -> DeliveryStep:
        session, name = self._facts.session, self._asked.client_id
        if session is None:
            where = (
                "is connected and subscribes to nothing" if self.is_connected else "has no session"
            )
            return _stops("Session", f"{name} {where}", "let it connect and subscribe")
        how = "is connected" if self.is_connected else "is away; its session is kept"
        return _passes("Session", f"{name} {how}")

    def _subscription(self) -> DeliveryStep:
        facts, asked = self._facts, self._asked
        if not facts.subscriptions:
            words = f"none of its {facts.others} subscriptions matches {asked.topic}"
            return _stops("Subscription", words, f"let it subscribe to {asked.topic}")
        named = ", ".join(each.key.decode(errors="replace") for each in facts.subscriptions)
        return _passes("Subscription", f"{asked.topic} is matched by {named}")

    def _routed(self) -> list[DeliveryStep]:
        facts = self._facts
        if facts.is_routed or all(each.share for each in facts.subscriptions):
            return []
        words = f"the topic's partition does not know of the subscription: {_UNROUTED}"
        return [_stops("Interest", words, "ask again in a moment")]

    def _rules(self) -> list[DeliveryStep]:
        guard, client_id = self._tenant.guard, self._asked.client_id.encode()
        acl = guard.description.acl
        if acl is None:
            return [_passes("SubscribeAcl", "the tenant has no access rules")]
        principal, steps = Principal(self.principal), []
        for spec in self._facts.subscriptions:
            decision = acl.check_subscribe(principal, ClientId(client_id), spec.key)
            words = f"{spec.key.decode(errors='replace')}: {say_decision(decision)}"
            steps.append(_judged("SubscribeAcl", decision, words))
        allowed = [each for each in steps if each.passes]
        topic = self._asked.topic.encode()
        held = acl.check_receive(principal, ClientId(client_id), topic)
        if held is not None:
            words = f"messages of {self._asked.topic} are withheld: {say_decision(held)}"
            return [_stops("WithheldAcl", words, _RULES_COMMAND)]
        return allowed[:1] or steps[:1]  # one that is allowed is enough

    def _own(self) -> list[DeliveryStep]:
        asked, subscriptions = self._asked, self._facts.subscriptions
        if not asked.publisher or asked.publisher != asked.client_id:
            return []
        if all(each.no_local for each in subscriptions):
            words = "it is the publisher itself, and subscribed with No Local"
            return [_stops("NoLocal", words, "subscribe without No Local")]
        return []

    def _shares(self) -> list[DeliveryStep]:
        facts, name = self._facts, self._asked.client_id
        if any(not each.share for each in facts.subscriptions):
            return []
        places = [each for each in facts.shares if each.is_member]
        if not places:
            words = f"the topic's partition does not count it in the group: {_UNROUTED}"
            return [_stops("Share", words, "ask again in a moment")]
        mine = [each for each in places if each.next_member == name]
        place = (mine or places)[0]
        way = "the message's key chooses" if place.by_key else "it goes round"
        words = f"one of {place.members} members of {place.key} gets each message ({way})"
        return [_passes("Share", f"{words}; the next one: {place.next_member}")]

    def _reachable(self) -> DeliveryStep:
        facts, session = self._facts, self._facts.session
        assert session is not None
        if self.is_connected:
            outbound = session.outbound
            words = f"{len(outbound)} of {facts.queue_messages_max} messages wait in its queue"
            connection = self._connection
            if connection is not None and not connection.writable:
                words += "; it does not read its connection now"
            return _passes("Connection", words)
        if not self.qos:
            words = "it is away, and what is sent at QoS 0 is kept for nobody"
            return _stops("Away", words, "connect it, or publish and subscribe above QoS 0")
        is_full = len(session.outbound) >= facts.queue_messages_max
        if is_full and facts.full_queues is FullQueue.DROP_NEWEST:
            return _stops("FullQueue", "its queue is full, and the newest is dropped")
        words = f"it is away: the message waits with {len(session.outbound)} others"
        return _passes("Queue", words)

    @property
    def qos(self) -> int:
        """At which it would leave: no higher than the client asked for."""
        wanted = max((each.qos for each in self._facts.subscriptions), default=0)
        return min(self._asked.qos, wanted)

    def verdict(self, stop: DeliveryStep | None) -> tuple[str, str]:
        asked = self._asked
        if stop is not None:
            return "no", f"{asked.client_id} would not get it: {stop.sentence}"
        key = self._facts.subscriptions[0].key.decode(errors="replace")
        by = f"by its subscription {key}, at QoS {self.qos}"
        only_shared = all(each.share for each in self._facts.subscriptions)
        if only_shared and not any(
            each.next_member == asked.client_id for each in self._facts.shares
        ):
            return "perhaps", f"{asked.client_id} gets its share {by}; the next is another member's"
        if not self.is_connected:
            return "queued", f"{asked.client_id} gets it when it comes back, {by}"
        return "yes", f"{asked.client_id} would get it {by}"


def _passes(rule: str, sentence: str) -> DeliveryStep:
    return DeliveryStep(rule=rule, passes=True, sentence=sentence)


def _stops(rule: str, sentence: str, command: str = "") -> DeliveryStep:
    return DeliveryStep(rule=rule, passes=False, sentence=sentence, command=command)


def _judged(rule: str, decision: AccessDecision, sentence: str) -> DeliveryStep:
    return _passes(rule, sentence) if decision.allowed else _stops(rule, sentence, _RULES_COMMAND)
