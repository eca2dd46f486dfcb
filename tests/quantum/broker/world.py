"""A tenant in one thread: partitions with replicas, clients, and a network that cannot be trusted.

The seed is the whole run. Checks that hold at every moment are made while it runs (replicas are
equal, nobody gets what he did not ask for); `check_all` makes those that hold when everything
has come to rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from random import Random

from xxhash import xxh3_64_intdigest

from quantum.broker import BrokerSettings, RemoveSession, SetPolicy, SubscriptionSpec
from quantum.broker.holdings import SESSION_BYTES
from quantum.broker.types import TRANSFER
from quantum.routing.ring import jump
from quantum.tenancy import HELD
from quantum.topics import matches
from tests.quantum.broker.client import Client
from tests.quantum.broker.connection import Published
from tests.quantum.broker.partition import (
    Items,
    Packet,
    Partition,
    Passed,
    PassedDone,
    Taken,
)

TOPICS = tuple(
    b"%b/%d" % (name, number) for name in (b"a", b"b", b"s", b"t") for number in range(3)
)


PLENTY = 1 << 40
KEPT_TOPICS = tuple(b"kept/%d" % number for number in range(12))


@dataclass(frozen=True)
class Plan:
    """What a run is made of."""

    partitions: int = 3
    replicas: int = 2
    queue_messages_max: int = 1_000
    channel_items_max: int = 100_000
    loss: float = 0.1
    repeats: float = 0.1
    retained: bool = True
    publishes: int = 12
    """How many of about eighty things that happen are publishes."""
    kept_topics: float = 0.0
    """How often one client publishes what is retained, at QoS 2, to topics of its own."""
    hashes_shares: bool = False
    store_bytes_max: int = PLENTY
    """How much all queues of a partition may hold."""

    def policy(self, now_ms: int) -> SetPolicy:
        """What every partition is told when a leader begins."""
        bounds = [PLENTY] * len(HELD)
        bounds[SESSION_BYTES] = self.store_bytes_max
        return SetPolicy(now_ms, bounds, bounds, self.hashes_shares)


class World:
    """Everything there is, and the count of what happened."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.rng = Random(seed)
        self.plan = plan or Plan()
        self.now_ms = 1_000
        self.checks_digests = True
        self.network: list[Packet] = []
        self.faulty = True
        self._count = 0
        self.messages: dict[tuple[bytes, bytes, int, int], Published] = {}
        self._numbers: Counter[tuple[bytes, bytes, int]] = Counter()
        self.clients: list[Client] = []
        self.rings: list[int] = []
        """How many partitions each routing epoch has, from the first change on."""
        self.partitions = [
            Partition(self, number, self.plan.replicas, self._settings(number))
            for number in range(self.plan.partitions)
        ]

    def _settings(self, number: int) -> BrokerSettings:
        return BrokerSettings(
            prg=number,
            prg_count=self.plan.partitions,
            topic_partition=self.owner,
            session_partition=self.home,
            queue_messages_max=self.plan.queue_messages_max,
            channel_items_max=self.plan.channel_items_max,
            retained_page=2,
            elapse_sessions_max=2,
        )

    def owner(self, topic: bytes, count: int) -> int:
        return jump(xxh3_64_intdigest(topic), count)

    def home(self, client_id: bytes, count: int) -> int:
        return self.owner(b"session " + client_id, count)

    @property
    def counts(self) -> list[int]:
        """How many partitions there are, as the open ones see it."""
        states = [partition.broker.state for partition in self.partitions]
        return [state.prg_count for state in states if state.is_open]

    def partition_of(self, client_id: bytes) -> Partition:
        """Return where somebody would send a client who may not know the newest ring."""
        counts = self.counts
        count = min(counts) if self.faulty and self.rng.random() < 0.2 else max(counts)
        return self.partitions[self.home(client_id, count)]

    def grow(self, count: int) -> None:
        """Let there be more partitions; who begins when is left to chance."""
        for number in range(len(self.partitions), count):
            settings = self._settings(number)
            self.partitions.append(Partition(self, number, self.plan.replicas, settings))
        self.rings.append(count)

    def tick(self) -> int:
        self._count += 1
        return self._count

    def client(self, client_id: bytes, **options: object) -> Client:
        client = Client(self, client_id, **options)  # type: ignore[arg-type]
        self.clients.append(client)
        return client

    # Messages.

    def new_message(self, publisher: bytes, topic: bytes, qos: int, *, retain: bool) -> Published:
        self._numbers[publisher, topic, qos] += 1
        number = self._numbers[publisher, topic, qos]
        published = Published(publisher, topic, number, qos, retain, self.tick())
        self.messages[publisher, topic, qos, number] = published
        return published

    def find_message(self, payload: bytes) -> Published | None:
        if payload == b"will":
            return None
        publisher, topic, qos, number = payload.split(b"|")
        return self.messages[publisher, topic, int(qos), int(number)]

    def note_refusal(self, payload: bytes) -> None:
        published = self.find_message(payload)
        assert published is not None
        published.once_refused = True

    # The network.

    def send(self, packet: Packet) -> None:
        rng = self.rng
        if self.faulty and rng.random() < self.plan.loss:
            return
        self.network.append(packet)
        if self.faulty and rng.random() < self.plan.repeats:
            self.network.append(packet)

    def deliver_packet(self) -> None:
        if not self.network:
            return
        at = self.rng.randrange(len(self.network)) if self.faulty else 0
        self._deliver(self.network.pop(at))

    def _deliver(self, packet: Packet) -> None:
        match packet:
            case Items():
                self.partitions[packet.prg].on_items(packet)
            case Taken():
                taken = self.partitions[packet.origin % TRANSFER].taken
                peer = packet.prg + packet.origin // TRANSFER * TRANSFER
                taken[peer] = max(taken.get(peer, 0), packet.through)
            case Passed():
                self.partitions[packet.owner].on_passed(packet)
            case PassedDone():
                self.partitions[packet.origin].on_passed_done(packet)

    # What happens.

    def run(self, steps: int) -> None:
        actions = (
            [self._publish] * self.plan.publishes
            + [self._talk] * 30
            + [self.deliver_packet] * 10
            + [self._commit] * 12
            + [self._move] * 8
            + [self._change_subscriptions] * 2
            + [self._connect] * 4
            + [self._break] * 2
            + [self._disturb]
            + [self._rush] * (3 if self.rings else 0)
        )
        for _ in range(steps):
            self.now_ms += self.rng.choice((0, 1, 20))
            self.rng.choice(actions)()

    def _rush(self) -> None:
        """Let a move go on while the other packets are held up."""
        for _ in range(self.rng.randrange(6)):
            for partition in self.partitions:
                partition.rebalance()
                partition.commit()
                partition.send_channels()
            channels = [each for each in self.network if isinstance(each, Items | Taken)]
            self.network = [each for each in self.network if each not in channels]
            for packet in channels:
                self._deliver(packet)

    def _publish(self) -> None:
        client = self.rng.choice(self.clients)
        if client.client_id == b"publisher 0" and self.rng.random() < self.plan.kept_topics:
            client.publish(self.rng.choice(KEPT_TOPICS), 2, retain=True)
            return
        retain = self.plan.retained and self.rng.random() < 0.1
        client.publish(self.rng.choice(TOPICS), self.rng.choice((0, 1, 1, 2, 2)), retain=retain)

    def _talk(self) -> None:
        client = self.rng.choice(self.clients)
        if client.connection is not None:
            if self.rng.random() < 0.5:
                client.connection.handle()
            else:
                client.receive()

    def _commit(self) -> None:
        self.rng.choice(self.partitions).commit()

    def _move(self) -> None:
        partition = self.rng.choice(self.partitions)
        steps = [partition.send_channels, partition.send_forwards, partition.elapse]
        if self.rings:
            steps.append(partition.rebalance)
        self.rng.choice(steps)()

    def _change_subscriptions(self) -> None:
        restless = [each for each in self.clients if each.client_id.startswith(b"restless")]
        if not restless:
            return
        client = self.rng.choice(restless)
        key = self.rng.choice((b"a/#", b"+/1", b"b/2", b"#", *[b"$share/mixed/s/#"] * 3))
        if key in client.since:
            client.unsubscribe(key)
            return
        share, topic_filter = (b"mixed", b"s/#") if key.startswith(b"$share") else (b"", key)
        # At QoS 0 a member of a group may lose what another one would have got.
        qos = self.rng.choice((1, 2) if share else (0, 1, 2))
        client.subscribe(SubscriptionSpec(topic_filter, qos, share=share))

    def _connect(self) -> None:
        client = self.rng.choice(self.clients)
        if client.connection is None or self.rng.random() < 0.1:
            client.connect()

    def _break(self) -> None:
        client = self.rng.choice(self.clients)
        connection = client.connection
        if connection is None:
            return
        if self.rng.random() < 0.3:
            client.send("DISCONNECT")
        else:
            connection.end(gracefully=False)

    def _disturb(self) -> None:
        partition = self.rng.choice(self.partitions)
        replica = self.rng.randrange(len(partition.brokers))
        if self.rng.random() < 0.5:
            partition.lead(replica)
        else:
            partition.replace_replica(replica)

    # Coming to rest.

    def settle(self, rounds: int = 400) -> None:
        """Let everyone be connected and the network be good until nothing moves any more."""
        self.faulty = False
        for _ in range(rounds):
            self.now_ms += 10
            if not self._settle_once():
                self.faulty = True
                return
        raise AssertionError("the world does not come to rest")

    def _settle_once(self) -> bool:
        moved = False
        for client in self.clients:
            if client.connection is None:
                client.connect()
                moved = True
            while client.connection is not None and client.connection.to_client:
                client.receive()
                moved = True
            while client.connection is not None and client.connection.to_server:
                client.connection.handle()
                moved = True
        while self.network:
            self.deliver_packet()
            moved = True
        for partition in self.partitions:
            partition.elapse()
            if self.rings:
                partition.rebalance()
            moved |= bool(partition.pending)
            partition.commit()
            partition.send_channels()
            partition.send_forwards()
        return moved or bool(self.network)

    # What must hold when nothing moves.

    def check_all(self) -> None:
        for client in self.clients:
            if client.client_id.startswith(b"steady"):
                self._check_deliveries(client)
                self._check_order(client)
        self._check_group(b"durable", exactly_once=True)
        self._check_group(b"mixed", exactly_once=False)
        self.check_no_leaks()

    def _check_deliveries(self, client: Client) -> None:
        counts = Counter(
            id(each.published) for each in client.received if not each.retained and not each.share
        )
        for message in self.messages.values():
            wishes = [
                spec.qos
                for since, spec in client.since.values()
                if not spec.share and since < message.at and matches(spec.filter, message.topic)
            ]
            qos = min(message.qos, max(wishes, default=0))
            self._check_count(client, message, qos, counts[id(message)])

    def _check_count(self, client: Client, message: Published, qos: int, count: int) -> None:
        told = f"{client.client_id!r} got {message} {count} times at QoS {qos}"
        if qos and message.acknowledged:
            assert count >= 1, told
        if qos == 2 or message.qos == 0:
            assert count <= 1, told

    def _check_order(self, client: Client) -> None:
        last: defaultdict[tuple[bytes, bytes, int, int], int] = defaultdict(int)
        seen: set[int] = set()
        for each in client.received:
            message = each.published
            if message is None or each.retained or each.share or id(message) in seen:
                continue
            seen.add(id(message))
            if message.once_refused:
                continue
            # QoS 0 that is on its way when its connection ends may be lost, or come later.
            connection = message.connection if message.qos == 0 else 0
            key = (message.publisher, message.topic, message.qos, connection)
            assert message.number > last[key], f"{client.client_id!r} got {message} too late"
            last[key] = message.number

    def _check_group(self, share: bytes, *, exactly_once: bool) -> None:
        counts: Counter[int] = Counter()
        begin = 1 << 60
        topic_filter = b""
        for client in self.clients:
            counts.update(id(e.published) for e in client.received if e.share == share)
            for since, spec in client.since.values():
                if spec.share == share and client.client_id.startswith(b"steady"):
                    begin, topic_filter = min(begin, since), spec.filter
        for message in self.messages.values():
            if message.at > begin and matches(topic_filter, message.topic):
                count = counts[id(message)]
                told = f"the group {share!r} got {message} {count} times"
                if message.acknowledged:
                    assert count >= 1 or (message.qos == 2 and not exactly_once), told
                if exactly_once and message.qos == 2:
                    assert count <= 1, told

    def check_no_leaks(self) -> None:
        for partition in self.partitions:
            state = partition.broker.state
            for prg, outbox in state.channels.outboxes().items():
                assert not outbox.items, f"items for {prg} are left in {partition.number}"
                assert outbox.weight == 0
            assert not state.congested and not state.refusing and not state.replaying
            assert not state.routes.full and not state.full_stores
            assert state.queued.amount == 0
            for session in state.sessions.values():
                assert not session.received, f"{session.client_id!r} has open QoS 2 publishes"
                assert not len(session.outbound), f"{session.client_id!r} has deliveries left"
                assert session.outbound.weight == 0
                assert not session.replays
            assert not any(len(each.volatile) for each in partition.connections.values())

    def check_nothing_remains(self) -> None:
        """End every session: nothing of them may be left anywhere."""
        for partition in self.partitions:
            for client_id in list(partition.broker.state.sessions):
                partition.propose(RemoveSession(self.now_ms, client_id))
        self.clients, clients = [], self.clients
        self.settle()
        self.clients = clients
        for partition in self.partitions:
            state = partition.broker.state
            assert not state.sessions and not state.filters and not state.told
            assert not state.groups, state.groups
            assert not len(state.routes.trie), list(state.routes.trie.items())


def peopled_world(seed: int, plan: Plan | None = None) -> World:
    """Make a world with subscribers that stay, some that come and go, and publishers."""
    world = World(seed, plan)
    for number, filters in enumerate(((b"a/#", b"+/1"), (b"#",), (b"b/2", b"a/0"))):
        client = world.client(b"steady %d" % number, durable=True, window=number + 1)
        client.connect()
        world.settle()
        specs = [SubscriptionSpec(each, 2, identifier=nth + 1) for nth, each in enumerate(filters)]
        client.subscribe(*specs)
        client.subscribe(SubscriptionSpec(b"t/#", 2, share=b"durable"))
        if number < 2:
            client.subscribe(SubscriptionSpec(b"s/#", 1, share=b"mixed"))
    for number in range(2):
        world.client(b"restless %d" % number, durable=False)
    world.client(b"restless 3", durable=True, expiry_seconds=1, has_will=True)
    world.client(b"publisher 0", durable=True)
    world.client(b"publisher 1", durable=False)
    world.settle()
    assert all(client.connected for client in world.clients)
    return world
