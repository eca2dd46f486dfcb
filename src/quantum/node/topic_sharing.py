"""A lasting shared subscription: who receives has what waits, whoever it waited for.

Each receiver is a member of the group with a session of its own. While none is there, messages
wait in the sessions of those who left. A receiver that is there takes such a session over, gives
its client what waits in it, and ends it: from then on it is no member any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quantum.node.topic_subscribing import SubscribingSession
from quantum.protocols.amqp.engine import ErrorValue
from quantum.protocols.amqp.session.topic_port import (
    TopicDelivery,
    TopicPerson,
    TopicReceiver,
    TopicWish,
)
from quantum.tenants.session_names import PREFIX

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

_LOOK_MS: Final = 500
AWAY_MS_MIN: Final = 5_000
"""So long a member is away before its session is taken over: a new leader may be looked for."""
_AT_ONCE: Final = 8


class _Behind:
    """The receiver of a session that was taken over (`TopicReceiver`)."""

    def __init__(self, receiver: TopicReceiver) -> None:
        self._receiver = receiver

    def ready(self) -> None:
        """Its subscription was there."""

    def arrived(self) -> None:
        self._receiver.arrived()

    def failed(self, error: ErrorValue) -> None:
        """Its own receiver came back, or another one was quicker."""


class SharedSubscription:
    """A member of a shared subscription that lasts (`TopicSubscription`)."""

    def __init__(
        self,
        service: BrokerService,
        person: TopicPerson,
        wish: TopicWish,
        own: SubscribingSession,
        receiver: TopicReceiver,
    ) -> None:
        self._service = service
        self._person = person
        self._wish = wish
        self._own = own
        self._receiver = receiver
        self._taken: dict[bytes, SubscribingSession] = {}
        """Sessions of members that are away, by their names."""
        self._away: dict[bytes, int] = {}
        """Since when members are away, as far as is seen here."""
        self._homes: dict[int, tuple[SubscribingSession, int]] = {}
        """Whose each message is, and its number there."""
        self._last = 0
        self._looked_ms = service.clock_ms()

    # What the link asks for.

    @property
    def is_drained(self) -> bool:
        return all(each.is_drained for each in self._sessions())

    def take(self) -> TopicDelivery | None:
        for session in self._sessions():
            delivery = session.take()
            if delivery is not None:
                self._last += 1
                self._homes[self._last] = (session, delivery.number)
                delivery.number = self._last
                return delivery
        return None

    def give_back(self, delivery: TopicDelivery) -> None:
        home = self._homes.pop(delivery.number, None)
        if home is not None:
            delivery.number = home[1]
            home[0].give_back(delivery)

    def settle(self, number: int) -> None:
        home = self._homes.pop(number, None)
        if home is not None:
            home[0].settle(home[1])

    def probe(self) -> None:
        for session in self._sessions():
            session.probe()

    def close(self, *, ends: bool) -> None:
        for session in self._taken.values():
            session.close(ends=True)  # what waits in it is given to another member
        self._own.close(ends=ends)

    def _sessions(self) -> list[SubscribingSession]:
        return [self._own, *self._taken.values()]

    # Time.

    @property
    def is_over(self) -> bool:
        return all(each.is_over for each in self._sessions())

    def on_tick(self, now_ms: int) -> None:
        for name, session in list(self._taken.items()):
            session.on_tick(now_ms)
            if session.is_over:
                del self._taken[name]
            elif session.is_used_up:
                session.close(ends=True)
            else:
                session.probe_once()
        self._own.on_tick(now_ms)
        if now_ms - self._looked_ms >= _LOOK_MS and self._own.session.is_up:
            self._looked_ms = now_ms
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        """Take over who is away for long enough."""
        away = self._members_away()
        self._away = {name: self._away.get(name, now_ms) for name in away}
        for name, since_ms in self._away.items():
            is_due = now_ms - since_ms >= AWAY_MS_MIN
            if is_due and name not in self._taken and len(self._taken) < _AT_ONCE:
                self._taken[name] = SubscribingSession(
                    self._service,
                    self._person,
                    self._wish,
                    name.decode(),
                    _Behind(self._receiver),
                    others=[],
                )

    def _members_away(self) -> list[bytes]:
        tenant = self._service.tenants.get(self._person.peer.tenant)
        if tenant is None:
            return []
        key = (self._wish.share, self._wish.filter)
        groups = (prg.broker.state.groups.get(key) for prg in tenant.prgs)
        members = [each for group in groups if group is not None for each in group.members.values()]
        online = {each.client_id for each in members if each.online}
        return sorted(
            {
                each.client_id
                for each in members
                if each.client_id not in online and each.client_id.startswith(PREFIX)
            }
        )
