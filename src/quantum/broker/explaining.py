"""What a partition's machine would do with a message for one client: read, and nothing changed.

The partition of the topic decides who wants a message; that of the session has the subscriptions
and the queue. Both are looked at with the very tables that a publish walks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quantum.broker.commands import SubscriptionSpec
from quantum.broker.full_queues import FullQueue
from quantum.broker.items import BLOCKED
from quantum.broker.session import Session
from quantum.broker.state import BrokerState
from quantum.topics import matches


@dataclass(frozen=True, slots=True)
class SharePlace:
    """One shared subscription's group, as the partition of the topic has it."""

    key: str
    members: int
    is_member: bool
    next_member: str
    """Whose turn it is; empty: there is nobody."""
    by_key: bool


@dataclass(slots=True)
class DeliveryFacts:
    """What there is to say about a topic and a client."""

    subscriptions: list[SubscriptionSpec] = field(default_factory=list)
    """Those of the session that match the topic."""
    others: int = 0
    """How many it has that do not."""
    session: Session | None = None
    is_routed: bool = False
    """Whether the topic's partition knows that the session's wants it."""
    shares: list[SharePlace] = field(default_factory=list)
    full_clients: list[str] = field(default_factory=list)
    """Sessions without room that want the topic: publishes above QoS 0 wait for them."""
    full_partitions: list[int] = field(default_factory=list)
    """Partitions that said that a session of theirs has no room."""
    full_stores: list[int] = field(default_factory=list)
    """Partitions that would get it, and whose queues hold all that the tenant may."""
    full_queues: FullQueue = FullQueue.BLOCK
    queue_messages_max: int = 0
    queue_bytes_max: int = 0
    captures: list[str] = field(default_factory=list)
    """Streams that keep it."""


def find_delivery(
    owner: BrokerState, home: BrokerState, topic: bytes, client_id: bytes
) -> DeliveryFacts:
    """Read what both partitions have; `owner` is the topic's, `home` the session's."""
    facts = DeliveryFacts(
        full_queues=home.full_queues,
        queue_messages_max=home.settings.queue_messages_max,
        queue_bytes_max=home.settings.queue_bytes_max,
    )
    session = facts.session = home.sessions.get(client_id)
    if session is not None:
        specs = list(session.subscriptions.values())
        facts.subscriptions = [each for each in specs if matches(each.filter, topic)]
        facts.others = len(specs) - len(facts.subscriptions)
    _read_route(facts, owner, home.settings.prg, topic, client_id)
    return facts


def _read_route(
    facts: DeliveryFacts, owner: BrokerState, home: int, topic: bytes, client_id: bytes
) -> None:
    route = owner.routes.route(topic)
    here = owner.settings.prg
    targets = [*route.kept, *route.volatile]
    facts.captures = [each.spec.name.decode(errors="replace") for each in route.captures]
    if home == here:
        facts.is_routed = any(each.client_id == client_id for each in targets)
    else:
        facts.is_routed = home in route.remotes
    facts.full_clients = [
        each.client_id.decode(errors="replace")
        for each in route.kept
        if each.client_id in owner.routes.full
    ]
    facts.full_partitions = sorted(
        {
            subscriber
            for subscriber, wish in owner.routes.trie.match(topic)
            if isinstance(subscriber, int) and wish == BLOCKED
        }
    )
    stores = owner.full_stores
    wanted = {*route.remotes, *([here] if route.kept else [])}
    facts.full_stores = sorted(stores & wanted)
    unreachable = owner.channels.full() | stores
    for group in route.shares:
        key = topic if owner.hashes_shares else None
        chosen = group.next_member(unreachable, key)
        facts.shares.append(
            SharePlace(
                key=f"$share/{group.name.decode()}/{group.filter.decode()}",
                members=len(group.members),
                is_member=any(each == client_id for _, each in group.members),
                next_member="" if chosen is None else chosen.client_id.decode(errors="replace"),
                by_key=key is not None,
            )
        )
