"""One tenant's ring on this node: which partition owns what, and the ways between partitions."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Protocol

from clustor.control.command_gates import CommandGate
from clustor.log.types import PartitionId
from quantum.broker.items import Item, encode_item
from quantum.broker.types import TRANSFER
from quantum.mesh import link
from quantum.mesh.asks import Asks
from quantum.mesh.topic_reads import StreamFilesPort
from quantum.mesh.topics import TenantTopics
from quantum.partition.backpressure import Pausable, TurnShare
from quantum.partition.batches import cuts
from quantum.partition.gate import OperationGate
from quantum.partition.leader import PartitionLeader
from quantum.partition.ports import Done, LogWatch
from quantum.routing.ring import HashRing
from quantum.tenancy import TenantDescription
from quantum.tenants.broker_file import TenantRing
from quantum.tenants.control_words import ConnectRules
from quantum.tenants.policy import TenantGuard
from quantum.types import ClientId, TenantId

OWNERS_CACHED_MAX: Final = 65_536


class NodePort(Protocol):
    """What a tenant asks of its node."""

    def now_ms(self) -> int: ...
    def touch(self, prg: PartitionLeader) -> None: ...
    def say(self, node: int, said: link.Said, size: int) -> None: ...
    def is_local(self, node: int | None) -> bool: ...
    def knows(self, node: int, gate: CommandGate) -> bool: ...
    def knows_full_queues(self, prg: PartitionLeader) -> bool: ...
    def knows_topics(self, prg: PartitionLeader) -> bool: ...
    def members_know(self, prg: PartitionLeader, gate: CommandGate) -> bool: ...
    @property
    def stream_files(self) -> StreamFilesPort | None: ...
    def soon(self, call: Callable[[], None]) -> None: ...
    def gate_for(self, prg: PartitionLeader) -> OperationGate | None: ...
    @property
    def tick_ms(self) -> int: ...
    @property
    def uptime_seconds(self) -> int: ...


class TenantSide(Protocol):
    """The clients of a tenant that speak one protocol, on this node."""

    def judge_again(self) -> None:
        """Let those who are connected go on under the rules that are in force now, or go."""

    def send_away(self, why: str) -> int:
        """Send every client away; say how many went."""
        ...

    def ring_grew(self, fresh: list[PartitionLeader]) -> None:
        """Forget who owns what: these partitions own some of it now."""

    def link_anew(self, peer: int) -> None:
        """Something between this node and a peer was lost: begin anew what rests on it."""

    def review(self) -> None:
        """Look again what partitions let in: their gates may have changed."""

    def on_tick(self, now_ms: int) -> None:
        """Let due things happen."""


class Tenant:
    """The partitions of one tenant. Nothing of another tenant is reachable from here."""

    def __init__(self, name: str, links: NodePort, ring: HashRing, life: str | None = None) -> None:
        self.name = name
        self.life = name if life is None else life
        """Its name between nodes and in archives: one that was made again has another one."""
        self.shut = ""
        """Why nobody may connect; empty: clients are served."""
        self._links = links
        self._ring = ring
        self.prgs: list[PartitionLeader] = []
        """Those that are hosted here; the ring may not have all of them yet."""
        self.asks = Asks(self.life, self.prgs, links)
        """The way to leaders on other nodes, for commands of sections."""
        self.topics = TenantTopics(self)
        """What adapters of streaming protocols serve."""
        self.rings: tuple[TenantRing, ...] = ()
        """The ring of each routing epoch, from the first change on."""
        self.prg_count = 0
        """By how many partitions this node routes: the newest ring that any log here knows."""
        self.owners: dict[bytes, PartitionLeader] = {}
        """Topics that were published to lately, all well formed, and who owns them."""
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self.guard = TenantGuard(name, links.tick_ms)
        self.sides: list[TenantSide] = []
        """Its clients, by the protocol that they speak."""
        self.share: TurnShare | None = None
        """What it may take of each turn; None: nobody counts."""
        self._resting: list[tuple[int, int, Pausable]] = []
        """A heap of connections that are too fast, and when they are read again."""
        self._rests = 0
        self.auth_epoch = 0
        """Who came by a token of an older epoch must go (quantumqtt §10.4)."""
        self.throttled = 0
        """How often a connection was left unread because it, or its tenant, was too fast."""
        self.traces: LogWatch | None = None
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
        for side in self.sides:
            side.ring_grew(fresh)
        self.ask_again()

    def opened(self, prg: PartitionLeader) -> None:
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

    @property
    def tick_ms(self) -> int:
        return self._links.tick_ms

    def groups(self) -> tuple[PartitionId, ...]:
        """Return the groups of its partitions, by their numbers."""
        return tuple(prg.group.partition_id for prg in self.prgs)

    def obey(
        self, description: TenantDescription, connects: ConnectRules | None = None
    ) -> None:  # fmt: skip
        """Put another policy in force, for those who are connected too."""
        self.guard.change(description, self._links.tick_ms)
        self.guard.connects = connects
        self.judge_again()

    def judge_again(self) -> None:
        """Let those who are connected go on under the rules that are in force now, or go."""
        for side in self.sides:
            side.judge_again()

    def shut_out(self, why: str) -> int:
        """Send every client away, and let nobody in; what is kept stays. Returns how many went."""
        self.shut = why
        return sum(side.send_away(why) for side in self.sides)

    def retained_bytes(self) -> int:
        """What all its partitions retain, as far as this node's replicas know."""
        return sum(prg.broker.state.retained_bytes for prg in self.prgs)

    def subscription_count(self) -> int:
        """How many subscriptions all its sessions have, as far as this node's replicas know."""
        return sum(prg.broker.state.subscription_count for prg in self.prgs)

    # What the control plane's copy closes.

    def look_at(self, prg: PartitionLeader) -> None:
        """Ask how a partition stands that began to lead here."""
        gate = self._links.gate_for(prg)
        if gate is not None:
            prg.pass_gate(gate)

    def review(self) -> None:
        """Ask how every partition stands that is led here, and let clients feel it."""
        for prg in self.prgs:
            if prg.leading:
                self.look_at(prg)
        for side in self.sides:
            side.review()

    def rest(self, held: Pausable, until_ms: int) -> None:
        """Leave a connection unread until then."""
        self._rests += 1
        self.throttled += 1
        heappush(self._resting, (until_ms, self._rests, held))
        held.hold()

    def rests_until(self, held: Pausable) -> int | None:
        """Return until when a connection is left unread; None: it is not."""
        return next((until_ms for until_ms, _, each in self._resting if each is held), None)

    def on_tick(self) -> None:
        """Read again who has rested, and let due things happen."""
        if self.rings:
            self.note_ring()
        now_ms = self._links.tick_ms
        while self._resting and self._resting[0][0] <= now_ms:
            heappop(self._resting)[2].let_go()
        for side in self.sides:
            side.on_tick(now_ms)
        self.topics.on_tick(now_ms)

    def link_anew(self, peer: int) -> None:
        """Something between this node and a peer was lost: send again what may be."""
        self.asks.link_anew(peer)
        for side in self.sides:
            side.link_anew(peer)
        for prg in self.prgs:
            prg.peer_changed(None)

    def knows_full_queues(self, prg: PartitionLeader) -> bool:
        """Say whether every replica of a partition can apply another choice for full queues."""
        return self._links.knows_full_queues(prg)

    def knows_topics(self, prg: PartitionLeader) -> bool:
        """Say whether every replica of a partition can apply commands of topics."""
        return self._links.knows_topics(prg)

    def knows_compaction(self, prg: PartitionLeader) -> bool:
        """Say whether every replica of a partition can apply what compaction needs."""
        return self._links.members_know(prg, CommandGate.COMPACTION)

    def stream_files(self) -> StreamFilesPort | None:
        """Return who reads files of streams; None: nobody does yet."""
        return self._links.stream_files

    def now_ms(self) -> int:
        return self._links.now_ms()

    def soon(self, call: Callable[[], None]) -> None:
        self._links.soon(call)

    def touch(self, prg: PartitionLeader) -> None:
        self._links.touch(prg)

    def session_prg(self, client_id: bytes) -> PartitionLeader:
        """Return the partition that a client's session lives in."""
        number = self._ring.session_partition(
            TenantId(self.name), ClientId(client_id), self.prg_count
        )
        return self.prgs[number]

    def owner(self, topic: bytes) -> PartitionLeader:
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
        self, origin: PartitionLeader, owner: int, first: int, records: list[bytes], done: Done
    ) -> bool:
        """Pass publishes on to the leader of the partition that owns their topics."""
        prg = self.prgs[owner]
        if prg.leading and prg.is_open:
            if prg.blocked_reason:
                origin.note_blocked(owner, prg.blocked_reason)
            prg.publish_passed(origin.number, origin.term, first, records, done)
            return True
        node = prg.leader_node
        if node is None or self._links.is_local(node):
            return False
        for begin, end in cuts(records):
            piece = records[begin:end]
            said = link.ForwardedPublishes(
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
        self.say_to_leader(prg, link.ItemsTaken(self.life, number, peer, through), 64)

    def say_to_leader(self, prg: PartitionLeader, said: link.Said, size: int) -> None:
        """Say something to the node that leads a partition, if that is another one."""
        node = prg.leader_node
        if node is not None and not self._links.is_local(node):
            self._links.say(node, said, size)

    def say_if_known(self, node: int, gate: CommandGate, said: link.Said, size: int) -> None:
        """Say something to another node whose build knows the word."""
        if not self._links.is_local(node) and self._links.knows(node, gate):
            self._links.say(node, said, size)

    # Leaders.

    def leadership_changed(self, number: int) -> None:
        """Let what waits for a partition's leader go on, here or elsewhere."""
        for prg in self.prgs:
            if prg.number != number:
                prg.peer_changed(number)
        self.topics.leader_changed(number)
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
