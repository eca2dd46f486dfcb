"""One tenant's ring on this node: which partition owns what, and the ways between partitions."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Protocol

from quantum.broker import Message
from quantum.broker.items import Item, encode_item
from quantum.broker.shares import Member
from quantum.broker.types import TRANSFER
from quantum.mesh import link
from quantum.partition.backpressure import QUEUED_BYTES_MAX, Held, Level, TurnShare
from quantum.partition.batches import Done, cuts
from quantum.partition.gate import Operation, Standing
from quantum.protocols.mqtt.codec import PeerFault, ReasonCode
from quantum.protocols.mqtt.session.full_queues import FullQueues
from quantum.protocols.mqtt.session.slowing import SlowedElsewhere
from quantum.routing.ring import HashRing
from quantum.tenancy import TenantDescription
from quantum.tenants.policy import TenantGuard
from quantum.types import ClientId, TenantId

if TYPE_CHECKING:
    from quantum.node.broker_file import Ring
    from quantum.node.traces import Traces
    from quantum.partition.leader import Prg
    from quantum.protocols.mqtt.session.connection import Connection
    from quantum.tenants.control_words import ConnectRules

FENCED_MS_MAX: Final = 5_000
"""For how long a client may wait for what is closed before it must go."""
OWNERS_CACHED_MAX: Final = 65_536
_SLOW_MS_MAX: Final = 5_000
"""For how long slow subscribers may stop a tenant's publishers before the slowest must go."""


class Links(Protocol):
    """What a tenant asks of its node."""

    def now_ms(self) -> int: ...
    def touch(self, prg: Prg) -> None: ...
    def say(self, node: int, said: link.Said, size: int) -> None: ...
    def is_local(self, node: int | None) -> bool: ...
    def knows_slow_down(self, node: int) -> bool: ...
    def knows_full_queues(self, prg: Prg) -> bool: ...
    def soon(self, call: Callable[[], None]) -> None: ...
    def standing_of(self, prg: Prg) -> Standing | None: ...
    @property
    def tick_ms(self) -> int: ...
    @property
    def uptime_seconds(self) -> int: ...


class Tenant:
    """The partitions of one tenant. Nothing of another tenant is reachable from here."""

    def __init__(self, name: str, links: Links, ring: HashRing, life: str | None = None) -> None:
        self.name = name
        self.life = name if life is None else life
        """Its name between nodes and in archives: one that was made again has another one."""
        self.shut = ""
        """Why nobody may connect; empty: clients are served."""
        self._links = links
        self._ring = ring
        self.prgs: list[Prg] = []
        """Those that are hosted here; the ring may not have all of them yet."""
        self.rings: tuple[Ring, ...] = ()
        """The ring of each routing epoch, from the first change on."""
        self.prg_count = 0
        """By how many partitions this node routes: the newest ring that any log here knows."""
        self.owners: dict[bytes, Prg] = {}
        """Topics that were published to lately, all well formed, and who owns them."""
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self.guard = TenantGuard(name, links.tick_ms)
        self.full = FullQueues(self)
        """Lasting sessions without room, and who waits for them."""
        self.slowed = SlowedElsewhere(self)
        """Publishers here that subscribers on other nodes slow."""
        self.queued = Level(QUEUED_BYTES_MAX, links.soon)
        """What the connections here hold for subscribers that do not keep up."""
        self.share: TurnShare | None = None
        """What it may take of each turn; None: nobody counts."""
        self._slow_since_ms: int | None = None
        self._resting: list[tuple[int, int, Held]] = []
        """A heap of connections that are too fast, and when they are read again."""
        self._rests = 0
        self.auth_epoch = 0
        """Who came by a token of an older epoch must go (quantumqtt §10.4)."""
        self._fenced: dict[Connection, tuple[int, Operation]] = {}
        """Connections that ask for what is closed, since when, and for what."""
        self.throttled = 0
        """How often a connection was left unread because it, or its tenant, was too fast."""
        self.dropped = 0
        self.bytes_in = self.bytes_out = 0
        """Of clients that are let in, as MQTT: without TLS and WebSocket around it."""
        self.deliveries = 0
        self.faults: dict[str, int] = {}
        self.traces: Traces | None = None
        """Who tells of single messages; None: nobody."""

    # The ring.

    def note_ring(self) -> None:
        """Route by the newest ring that a replica here has applied."""
        states = [prg.broker.state for prg in self.prgs]
        count = max((state.prg_count for state in states if state.is_open), default=0)
        count = min(count, len(self.prgs))
        if count <= self.prg_count:
            return
        fresh, self.prg_count = self.prgs[self.prg_count : count], count
        self.owners.clear()
        for prg in self.prgs:
            for connection in prg.connections.values():
                connection.ring_grew(fresh)
        self.ask_again()

    def opened(self, prg: Prg) -> None:
        """Let everyone know, wherever they are, who waits for a partition that may be open now."""
        if not prg.is_open:
            return
        self.leadership_changed(prg.number)
        for peer in self.prgs:
            if peer is not prg:
                self.say_taken(peer.number, prg.number, 0)

    # Policy.

    @property
    def connections(self) -> int:
        """How many of its clients are connected here."""
        return self.guard.connections

    @property
    def uptime_seconds(self) -> int:
        return self._links.uptime_seconds

    def obey(
        self, description: TenantDescription, connects: ConnectRules | None = None
    ) -> None:  # fmt: skip
        """Put another policy in force, for those who are connected too."""
        self.guard.change(description, self._links.tick_ms)
        self.guard.connects = connects
        self.judge_again()

    def judge_again(self) -> None:
        """Let those who are connected go on under the rules that are in force now, or go."""
        for connection in self.connected():
            connection.policy_changed()

    def connected(self) -> list[Connection]:
        """Return the connections of the sessions that are served here."""
        return [each for prg in self.prgs for each in prg.connections.values()]

    def shut_out(self, why: str) -> int:
        """Send every client away, and let nobody in; what is kept stays. Returns how many went."""
        self.shut = why
        clients = self.connected()
        for connection in clients:
            connection.sent_away(why)
        return len(clients)

    def count_fault(self, fault: PeerFault) -> None:
        self.faults[fault.reason] = self.faults.get(fault.reason, 0) + 1

    def retained_bytes(self) -> int:
        """What all its partitions retain, as far as this node's replicas know."""
        return sum(prg.broker.state.retained_bytes for prg in self.prgs)

    def subscription_count(self) -> int:
        """How many subscriptions all its sessions have, as far as this node's replicas know."""
        return sum(prg.broker.state.subscription_count for prg in self.prgs)

    # What the control plane's copy closes.

    def look_at(self, prg: Prg) -> None:
        """Ask how a partition stands that began to lead here."""
        standing = self._links.standing_of(prg)
        if standing is not None:
            prg.stand(standing)

    def fence(self, connection: Connection, operation: Operation) -> None:
        """Leave a connection unread that asks for what is closed now (C11)."""
        if connection not in self._fenced:
            self._fenced[connection] = (self._links.tick_ms, operation)
            connection.hold()

    def fenced_for(self, connection: Connection) -> str:
        """Return why a connection is fenced; empty: it is not."""
        _, operation = self._fenced.get(connection, (0, None))
        prg = connection.prg
        return "" if operation is None or prg is None else prg.closed.get(operation, "")

    def review_fenced(self) -> None:
        """Read on where the way is open again; end what waited too long."""
        for connection, (since_ms, operation) in list(self._fenced.items()):
            prg = connection.prg
            why = prg.closed.get(operation) if prg is not None else None
            if connection.is_live and why is not None:
                if self._links.tick_ms - since_ms < FENCED_MS_MAX:
                    continue
                connection.fenced_off(why)
            del self._fenced[connection]
            connection.let_go()

    def rest(self, held: Held, until_ms: int) -> None:
        """Leave a connection unread until then."""
        self._rests += 1
        self.throttled += 1
        heappush(self._resting, (until_ms, self._rests, held))
        held.hold()

    def rests_until(self, held: Held) -> int | None:
        """Return until when a connection is left unread; None: it is not."""
        return next((until_ms for until_ms, _, each in self._resting if each is held), None)

    def on_tick(self) -> None:
        """Read again who has rested; send the slowest subscriber away if all wait for it."""
        if self.rings:
            self.note_ring()
        now_ms = self._links.tick_ms
        self.full.on_tick(now_ms)
        while self._resting and self._resting[0][0] <= now_ms:
            heappop(self._resting)[2].let_go()
        if not self.queued.is_high:
            self._slow_since_ms = None
            return
        if self._slow_since_ms is None:
            self._slow_since_ms = now_ms
        if now_ms - self._slow_since_ms > _SLOW_MS_MAX:
            self._end_stuck(now_ms)

    def _end_stuck(self, now_ms: int) -> None:
        """End the one that holds most of it and takes nothing; who takes something is waited for.

        Publishers that are faster than their subscribers are no reason to end a subscriber.
        """
        stuck = [
            each
            for each in self.connected()
            if each.queued_bytes and now_ms - each.moved_ms > _SLOW_MS_MAX
        ]
        worst = max(stuck, key=lambda each: each.queued_bytes, default=None)
        if worst is not None:
            worst.disconnect(ReasonCode.QUOTA_EXCEEDED, "it took nothing while publishers waited")

    def say_slow(
        self, node: int, prg: int, publisher: bytes, subscriber: bytes, *, slow: bool
    ) -> None:
        """Tell another node that a publisher there is too fast for a subscriber here, or is not."""
        if not self._links.is_local(node) and self._links.knows_slow_down(node):
            said = link.SlowDown(self.life, prg, publisher, subscriber, slow)
            self._links.say(node, said, len(publisher) + len(subscriber) + 32)

    def knows_full_queues(self, prg: Prg) -> bool:
        """Say whether every replica of a partition can apply another choice for full queues."""
        return self._links.knows_full_queues(prg)

    def now_ms(self) -> int:
        return self._links.now_ms()

    def soon(self, call: Callable[[], None]) -> None:
        self._links.soon(call)

    def touch(self, prg: Prg) -> None:
        self._links.touch(prg)

    def session_prg(self, client_id: bytes) -> Prg:
        """Return the partition that a client's session lives in."""
        number = self._ring.session_partition(
            TenantId(self.name), ClientId(client_id), self.prg_count
        )
        return self.prgs[number]

    def owner(self, topic: bytes) -> Prg:
        """Return the partition that owns a topic."""
        prg = self.owners.get(topic)
        if prg is None:
            if len(self.owners) >= OWNERS_CACHED_MAX:
                self.owners.clear()
            prg = self.owners[topic] = self.prgs[self.topic_partition(topic)]
        return prg

    def topic_partition(self, topic: bytes) -> int:
        return self._ring.topic_partition(TenantId(self.name), topic, self.prg_count)

    # Between partitions, wherever their leaders are. Each says whether there was a way.

    def forward(
        self, origin: Prg, owner: int, first: int, records: list[bytes], done: Done
    ) -> bool:
        """Pass publishes on to the leader of the partition that owns their topics."""
        prg = self.prgs[owner]
        if prg.leading and prg.is_open:
            if prg.held:
                origin.note_held(owner, prg.held)
            prg.publish_passed(origin.number, origin.term, first, records, done)
            return True
        node = prg.leader_node
        if node is None or self._links.is_local(node):
            return False
        for begin, end in cuts(records):
            piece = records[begin:end]
            said = link.Forwarded(
                self.life, origin.number, owner, origin.term, first + begin, piece
            )
            self._links.say(node, said, sum(map(len, piece)) + 64)
        return True

    def send_items(self, origin: int, peer: int, first: int, items: list[Item], base: int) -> bool:
        """Send items of a stream to the leader of the partition they are for.

        `base` is how far that partition is known to be. What moves to a fresh partition has a
        stream of its own: `TRANSFER` is in both its names.
        """
        number = peer % TRANSFER
        origin += peer - number
        if number >= len(self.prgs):
            return False  # not hosted yet
        prg = self.prgs[number]
        if prg.leading:
            prg.receive_items(origin, first, items, base)
            return True
        node = prg.leader_node
        if node is None or self._links.is_local(node):
            return False
        encoded = [encode_item(item) for item in items]
        for begin, end in cuts(encoded):
            piece = encoded[begin:end]
            said = link.Items(self.life, origin, number, first + begin, piece, base)
            self._links.say(node, said, sum(map(len, piece)) + 64)
        return True

    def say_taken(self, origin: int, peer: int, through: int) -> None:
        """Tell the leader of `origin` that `peer` has its items up to a place."""
        number = origin % TRANSFER
        peer += origin - number
        prg = self.prgs[number]
        if prg.leading:
            prg.items_taken(peer, through)
            return
        node = prg.leader_node
        if node is not None and not self._links.is_local(node):
            self._links.say(node, link.ItemsTaken(self.life, number, peer, through), 64)

    def publish_unlogged(self, message: Message) -> None:
        """Let a QoS 0 message go to everyone who is there; it may be lost."""
        prg = self.owner(message.topic)
        if prg.leading:
            prg.publish_unlogged(message)
            return
        node = prg.leader_node
        if node is not None and not self._links.is_local(node):
            said = link.Unlogged(self.life, prg.number, [message.record])
            self._links.say(node, said, len(message.record) + 32)

    def deliver_unlogged(self, origin: int, number: int, message: Message) -> None:
        """Deliver a QoS 0 message to the sessions of a partition."""
        prg = self.prgs[number]
        if prg.leading:
            prg.fan_out_behind(origin, message)
            return
        node = prg.leader_node
        if node is not None and not self._links.is_local(node):
            said = link.UnloggedDeliver(self.life, origin, number, [message.record])
            self._links.say(node, said, len(message.record) + 32)

    def deliver_to_member(self, member: Member, message: Message) -> None:
        """Deliver a QoS 0 message to one member of a shared subscription."""
        prg = self.prgs[member.prg]
        if prg.leading:
            prg.deliver_to_member(member.client_id, member.epoch, member.identifier, message)
            return
        node = prg.leader_node
        if node is not None and not self._links.is_local(node):
            said = link.UnloggedMember(
                self.life,
                member.prg,
                member.client_id,
                member.epoch,
                member.identifier,
                message.record,
            )
            self._links.say(node, said, len(message.record) + 64)

    # Leaders.

    def leadership_changed(self, number: int) -> None:
        """Let what waits for a partition's leader go on, here or elsewhere."""
        for prg in self.prgs:
            if prg.number != number:
                prg.peer_changed(number)
        for waiting in self._waiting.pop(number, []):
            waiting()

    def ask_again(self) -> None:
        """Let what waits look again: a node may be reachable that was not."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for calls in waiting.values():
                for call in calls:
                    call()

    def when_led(self, number: int, then: Callable[[], None]) -> None:
        """Call `then` when something changed about who leads a partition."""
        self._waiting.setdefault(number, []).append(then)
