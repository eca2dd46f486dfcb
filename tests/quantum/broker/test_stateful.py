"""Hypothesis draws what happens in the small world, and finds the shortest story that breaks it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from quantum.broker import SubscriptionSpec
from tests.quantum.broker.client import Client
from tests.quantum.broker.world import TOPICS, Plan, World, peopled_world

CLIENTS = st.integers(0, 7)
PARTITIONS = st.integers(0, 1)


class Story(RuleBasedStateMachine):
    """Every rule is one thing that a client, a leader or the network does."""

    world: World

    @initialize(queue=st.sampled_from((4, 1_000)), channel=st.sampled_from((4, 1_000)))
    def people(self, queue: int, channel: int) -> None:
        plan = Plan(partitions=2, queue_messages_max=queue, channel_items_max=channel, loss=0.0)
        self.world = peopled_world(0, plan)

    def _client(self, nth: int) -> Client:
        return self.world.clients[nth]

    @rule(nth=CLIENTS, topic=st.sampled_from(TOPICS), qos=st.integers(1, 2), retain=st.booleans())
    def publish(self, nth: int, topic: bytes, qos: int, retain: bool) -> None:
        self._client(nth).publish(topic, qos, retain=retain)

    @rule(
        nth=st.integers(3, 5),
        topic_filter=st.sampled_from((b"a/#", b"#", b"b/1")),
        qos=st.integers(0, 2),
        handling=st.integers(0, 2),
    )
    def subscribe(self, nth: int, topic_filter: bytes, qos: int, handling: int) -> None:
        spec = SubscriptionSpec(topic_filter, qos, retain_handling=handling)
        self._client(nth).subscribe(spec)

    @rule(nth=st.integers(3, 5))
    def join(self, nth: int) -> None:
        self._client(nth).subscribe(SubscriptionSpec(b"s/#", 1, share=b"mixed"))

    @rule(nth=st.integers(3, 5), key=st.sampled_from((b"a/#", b"#", b"$share/mixed/s/#")))
    def unsubscribe(self, nth: int, key: bytes) -> None:
        self._client(nth).unsubscribe(key)

    @rule(nth=CLIENTS)
    def connect(self, nth: int) -> None:
        self._client(nth).connect()

    @rule(nth=CLIENTS)
    def lose(self, nth: int) -> None:
        connection = self._client(nth).connection
        if connection is not None:
            connection.end(gracefully=False)

    @rule(nth=CLIENTS, packets=st.integers(1, 5))
    def talk(self, nth: int, packets: int) -> None:
        for _ in range(packets):
            client = self._client(nth)
            client.receive()
            if client.connection is not None:
                client.connection.handle()

    @rule(nth=PARTITIONS)
    def commit(self, nth: int) -> None:
        self.world.partitions[nth].commit()

    @rule(nth=PARTITIONS)
    def send(self, nth: int) -> None:
        self.world.partitions[nth].send_channels()
        self.world.partitions[nth].send_forwards()

    @rule(packets=st.integers(1, 4))
    def deliver(self, packets: int) -> None:
        for _ in range(packets):
            self.world.deliver_packet()

    @rule(at=st.integers(0, 20))
    def drop(self, at: int) -> None:
        if at < len(self.world.network):
            del self.world.network[at]

    @rule(nth=PARTITIONS, replica=st.integers(0, 1))
    def lead(self, nth: int, replica: int) -> None:
        self.world.partitions[nth].lead(replica)

    @rule(nth=PARTITIONS, replica=st.integers(0, 1))
    def replace(self, nth: int, replica: int) -> None:
        self.world.partitions[nth].replace_replica(replica)

    @rule(nth=PARTITIONS, seconds=st.sampled_from((0, 1, 5)))
    def elapse(self, nth: int, seconds: int) -> None:
        self.world.now_ms += 1000 * seconds
        self.world.partitions[nth].elapse()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
            self.world.check_all()
            self.world.check_nothing_remains()


TestStory = Story.TestCase
TestStory.settings = settings(
    max_examples=25,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
