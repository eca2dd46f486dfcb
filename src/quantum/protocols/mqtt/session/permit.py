"""What one connection may do under its tenant's policy, and what it is told when it may not."""

from __future__ import annotations

from typing import Final

from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.codec import (
    ProtocolViolation,
    ReasonCode,
    SubscribePacket,
    UnsubscribePacket,
)
from quantum.protocols.mqtt.codec.hot import SLOW, Row
from quantum.protocols.mqtt.session.client_wire import ClientWire
from quantum.protocols.mqtt.session.subscribing import SubscribePlan, plan_subscribe
from quantum.tenancy import AccessDecision, ClientAccess, QuotaVerdict, Rate, Resource
from quantum.tenants.binding import NO_LIST, needs_list
from quantum.tenants.policy import Admitted, PublishGate

_ALLOWED_TOPICS_MAX: Final = 1_024
_NOTED_MAX: Final = 64
_BY_RULES: Final = "the rules of the tenant"
_PUBLISHES: Final = range(0x30, 0x40)
_TOO_FAST: Final = "too many subscriptions in a while"


class Permit:
    """A client's rights. A new policy is a new permit; a tenant without rules costs nothing here.

    `owners` are topics that the client may publish to, and who owns them: the tenant's own table
    where nothing is forbidden. So a publish to a topic that was allowed before is one lookup,
    with rules or without.
    """

    __slots__ = ("_access", "_connection", "_noted", "_why", "gate", "owners")

    def __init__(self, connection: ClientWire) -> None:
        home = connection.home
        guard = home.guard
        self._connection = connection
        needed = needs_list(connection.peer, shared=guard.is_shared)
        self._access = guard.access(connection.identity, connection.client_id, needs_list=needed)
        self._why = NO_LIST if needed and guard.description.acl is None else _BY_RULES
        self._noted: set[bytes] | None = None  # refusals that were written down
        owners = home.tenant.owners if self._access is None else {}
        self.owners: dict[bytes, PartitionLeader] = owners
        self.gate: PublishGate | None = guard.gate(connection.node.tick_ms)

    def may_publish(self, topic: bytes) -> bool:
        """Say whether the rules allow it; a will is a publish like any other (§10.2)."""
        return self._access is None or self._access.publish(topic).allowed

    def judge(self, topic: bytes) -> AccessDecision | None:
        """Return what the rules say of a publish to a topic; None: there are none."""
        return None if self._access is None else self._access.publish(topic)

    @property
    def withholds(self) -> ClientAccess | None:
        """Return the rules that every message to the client has to pass; None: there are none."""
        access = self._access
        return access if access is not None and access.withholds else None

    def forbidden(self, filters: list[bytes]) -> list[bytes]:
        """Return those of a session's subscriptions that the rules do not allow any more."""
        access = self._access
        if access is None:
            return []
        return [each for each in filters if not access.subscribe(each).allowed]

    def owner(self, topic: bytes) -> PartitionLeader | None:
        """Return who owns a topic; None where the client may not publish to it.

        Raises ProtocolViolation where the tenant's policy sends such clients away (C14).
        """
        tenant = self._connection.home.tenant
        if self._access is None:
            return tenant.owner(topic)
        if not self.may_publish(topic):
            self._refused("PUBLISH_REFUSED", topic)
            return None
        if len(self.owners) >= _ALLOWED_TOPICS_MAX:
            self.owners.clear()
        owner = self.owners[topic] = tenant.owner(topic)
        return owner

    def plan_subscribe(self, packet: SubscribePacket) -> SubscribePlan:
        """Read a SUBSCRIBE, and refuse the lines that are not allowed or too many.

        Raises ProtocolViolation where the tenant's policy sends such clients away.
        """
        connection = self._connection
        plan = plan_subscribe(
            packet,
            connection.version,
            self._access,
            self._has_room(packet),
            levels_max=connection.limits.topic_levels_max,
            for_bridge=connection.agreed.is_bridge,
        )
        for line, refused in zip(packet.subscriptions, plan.refused, strict=True):
            if refused is not None:
                connection.node.meters.refuse("SUBSCRIBE", refused)
            if refused is ReasonCode.NOT_AUTHORIZED:
                self._refused("SUBSCRIBE_REFUSED", line.topic_filter)
            elif refused is ReasonCode.QUOTA_EXCEEDED:
                self._note("SUBSCRIBE_OVER_QUOTA", line.topic_filter)
        return plan

    def admits_unsubscribe(self, packet: UnsubscribePacket) -> bool:
        """Charge an UNSUBSCRIBE as a SUBSCRIBE of as many filters, and say if it may be.

        Raises ProtocolViolation where it may not and the client cannot be told so: before MQTT 5
        its answer has no reasons.
        """
        if self._keeps_pace(len(packet.topic_filters)):
            return True
        self._note("UNSUBSCRIBE_OVER_QUOTA", b"")
        if not self._connection.is_v5:
            raise ProtocolViolation(ReasonCode.QUOTA_EXCEEDED, _TOO_FAST)
        return False

    def _keeps_pace(self, count: int) -> bool:
        """Charge so many filters to the tenant's rate; what is only too early waits afterwards."""
        home, now_ms = self._connection.home, self._connection.node.tick_ms
        pace = home.guard.ask(Rate.SUBSCRIBES, count, now_ms)
        if pace.verdict is QuotaVerdict.DISCONNECT:
            raise ProtocolViolation(ReasonCode.QUOTA_EXCEEDED, _TOO_FAST)
        if pace.verdict is QuotaVerdict.REJECT:
            return False
        if pace.wait_ms:
            home.tenant.rest(self._connection, now_ms + pace.wait_ms)
        return True

    def _has_room(self, packet: SubscribePacket) -> bool:
        home, count = self._connection.home, len(packet.subscriptions)
        now_ms = self._connection.node.tick_ms
        if not self._keeps_pace(count):
            return False
        held = home.tenant.subscription_count()
        return home.guard.has_room(Resource.SUBSCRIPTION_FILTERS, held, count, now_ms)

    def must_wait(self) -> bool:
        """Leave what is here for later if its tenant had its share of this turn, or is too fast."""
        connection = self._connection
        home, gate = connection.home, self.gate
        if home.share is not None and home.share.is_used:
            home.share.hold(connection)
            return True
        if gate is None:
            return False
        now_ms = connection.node.tick_ms
        rest_ms = gate.rest_ms(now_ms)
        if rest_ms:
            home.tenant.rest(connection, now_ms + rest_ms)
        return rest_ms > 0

    def admit(self, buffer: bytes, rows: list[Row]) -> Admitted:
        """Decide about packets of a client whose publishes are counted (quantumqtt §§11.2, 11.3).

        Raises ProtocolViolation where the client must go, or cannot be told what is refused.
        """
        connection, gate = self._connection, self.gate
        assert gate is not None
        retained_bytes = connection.home.tenant.retained_bytes()
        admitted = gate.admit(*_weigh(buffer, rows), retained_bytes, connection.node.tick_ms)
        if not admitted.is_whole:
            self._note("PUBLISH_OVER_QUOTA", b"")
            if admitted.disconnects or not connection.is_v5:  # there are no words before MQTT 5
                raise ProtocolViolation(ReasonCode.QUOTA_EXCEEDED, "too many publishes in a while")
        return admitted

    def _refused(self, what: str, name: bytes) -> None:
        """Write down what the rules refuse, and send the client away if that is the policy."""
        self._note(what, name)
        if self._connection.home.guard.disconnects:
            raise ProtocolViolation(ReasonCode.NOT_AUTHORIZED, "this topic is not allowed")

    def _note(self, what: str, name: bytes) -> None:
        """Write a refusal down, each name once and not without end."""
        if self._noted is None:
            self._noted = set()
        if name not in self._noted and len(self._noted) < _NOTED_MAX:
            self._noted.add(name)
            connection = self._connection
            connection.home.guard.note(what, connection.client_id, connection.identity, name)
            connection.note_refused(what, self._why, name)


def is_publish(buffer: bytes, row: Row) -> bool:
    """Say whether a row is a PUBLISH, of whatever kind."""
    return (buffer[row[2]] if row[0] == SLOW else row[0]) in _PUBLISHES


def _weigh(buffer: bytes, rows: list[Row]) -> tuple[int, int, int]:
    """Return how many publishes there are, their bytes, and the bytes of those to be retained."""
    count = size = kept = 0
    for row in rows:
        if is_publish(buffer, row):
            weight = row[6] - row[2]
            count += 1
            size += weight
            if buffer[row[2]] & 1 and row[6] > row[5]:
                kept += weight
    return count, size, kept
