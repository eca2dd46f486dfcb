"""Spans of messages: which there are, whose children they are, and what tracing never changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from clustor.telemetry.tracing import NO_PARENT, Span, TraceContext, read_traceparent
from quantum.protocols.mqtt.codec import Properties, Publish, ReasonCode, TopicName, encode_packet
from quantum.protocols.mqtt.codec.types import PacketId
from quantum.protocols.mqtt.session.traces import ALERT_SECONDS, KEY, SPANS_PER_SECOND_MAX, Traces
from tests.quantum.serving.client import V5, V311, Client, connect
from tests.quantum.serving.lab import TENANT, Lab

CALLER = TraceContext(bytes(range(16)), bytes(range(8, 16)))
SAMPLED = CALLER.traceparent
UNSAMPLED = SAMPLED[:-2] + "00"
SECOND_NS = 1_000_000_000


class Bench:
    """A broker whose spans are kept, and whose clock moves a little with every look."""

    def __init__(
        self, *, share: float = 0.0, spans_per_second_max: int = SPANS_PER_SECOND_MAX, prgs: int = 3
    ) -> None:
        self.lab = Lab(prgs=prgs)
        self.spans: list[Span] = []
        self.now_ns = SECOND_NS
        drawn = count(1)
        self.traces = Traces(
            self,
            share=share,
            spans_per_second_max=spans_per_second_max,
            now_ns=self._now_ns,
            entropy=lambda size: next(drawn).to_bytes(size, "big"),
        )
        self.lab.service.trace_with(self.traces)

    def add(self, span: Span) -> None:
        self.spans.append(span)

    def _now_ns(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def by_name(self) -> dict[str, Span]:
        assert len({span.name for span in self.spans}) == len(self.spans), self.names()
        return {span.name: span for span in self.spans}

    def names(self) -> Counter[str]:
        return Counter(span.name for span in self.spans)

    def topic(self, client: str, *, owned: bool) -> bytes:
        """Find a topic that the partition of a client's session owns, or another one."""
        tenant = self.lab.service.tenants[TENANT]
        home = tenant.session_prg(client.encode())
        names = (b"topic-%d" % number for number in count())
        return next(name for name in names if (tenant.owner(name) is home) == owned)


def with_context(text: str = SAMPLED, *more: tuple[str, str]) -> Properties:
    return Properties(user_properties=((KEY, text), *more))


def assert_tree(bench: Bench, parents: dict[str, str]) -> None:
    """See that the spans are one trace, these and no others, each below its parent."""
    spans = bench.by_name()
    assert set(spans) == set(parents)
    assert {span.trace_id for span in spans.values()} == {CALLER.trace_id}
    assert len({span.span_id for span in spans.values()}) == len(spans)
    for name, parent in parents.items():
        wanted = CALLER.span_id if parent == "caller" else spans[parent].span_id
        assert spans[name].parent_id == wanted, name
        assert spans[name].began_ns <= spans[name].ended_ns, name


FORWARDED = {
    "publish": "caller",
    "authorise": "publish",
    "forward": "publish",
    "fsync": "forward",
    "apply": "forward",
    "deliver": "publish",
}


def test_a_forwarded_publish_has_all_its_spans_below_the_right_parents() -> None:
    bench = Bench()
    subscriber = connect(bench.lab)
    publisher = connect(bench.lab, client_id="pub", user_properties=((KEY, SAMPLED),))
    topic = bench.topic("pub", owned=False)
    subscriber.subscribe(topic, 1)
    publisher.publish(topic, b"x", 1, properties=with_context())
    assert_tree(bench, FORWARDED | {"connect": "caller"})
    publish = bench.by_name()["publish"]
    assert publish.attributes["messaging.destination.name"] == topic.decode()
    assert publish.attributes["quantum.tenant"] == TENANT
    inner = ("authorise", "forward", "fsync", "apply")
    for each in (bench.by_name()[name] for name in inner):
        assert publish.began_ns <= each.began_ns <= each.ended_ns <= publish.ended_ns, each


def test_a_publish_to_a_topic_of_its_own_partition_is_not_forwarded() -> None:
    bench = Bench()
    publisher = connect(bench.lab, client_id="pub")
    topic = bench.topic("pub", owned=True)
    publisher.subscribe(topic, 1)
    publisher.publish(topic, b"x", 1, properties=with_context())
    without = {name: parent for name, parent in FORWARDED.items() if name != "forward"}
    assert_tree(bench, without | {"fsync": "publish", "apply": "publish"})


@pytest.mark.parametrize("owned", [True, False])
def test_qos_0_is_neither_fsynced_nor_applied(owned: bool) -> None:
    bench = Bench()
    publisher = connect(bench.lab, client_id="pub")
    topic = bench.topic("pub", owned=owned)
    publisher.subscribe(topic)
    publisher.publish(topic, b"x", 0, properties=with_context())
    logged = {"fsync", "apply"} | ({"forward"} if owned else set())
    assert_tree(bench, {name: each for name, each in FORWARDED.items() if name not in logged})


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("subscriber_lasts", [False, True])
def test_qos_2_between_all_kinds_of_sessions_is_one_trace(
    lasts: bool, subscriber_lasts: bool
) -> None:
    bench = Bench()
    subscriber = connect(
        bench.lab, client_id="s", session_expiry_interval=60 if subscriber_lasts else 0
    )
    publisher = connect(bench.lab, client_id="pub", session_expiry_interval=60 if lasts else 0)
    topic = bench.topic("pub", owned=False)
    subscriber.subscribe(topic, 2)
    assert publisher.publish(topic, b"x", 2, properties=with_context()) is ReasonCode.SUCCESS
    names = bench.names()
    assert all(names[name] == 1 for name in ("publish", "authorise", "forward", "deliver")), names
    assert names["fsync"] == names["apply"] >= 1 + lasts
    ids = {span.span_id for span in bench.spans}
    assert len(ids) == len(bench.spans), "every span has an id of its own"
    assert all(span.parent_id in ids | {CALLER.span_id} for span in bench.spans), "no orphans"
    assert {span.trace_id for span in bench.spans} == {CALLER.trace_id}


def test_every_subscriber_has_a_delivery_of_its_own() -> None:
    bench = Bench()
    for _ in range(5):
        connect(bench.lab).subscribe(b"t", 1)
    connect(bench.lab).publish(b"t", b"x", 1, properties=with_context())
    deliveries = [span for span in bench.spans if span.name == "deliver"]
    assert len({span.span_id for span in deliveries}) == len(deliveries) == 5


def test_two_publishes_of_one_span_are_told_apart() -> None:
    bench = Bench()
    publisher = connect(bench.lab)
    for _ in range(2):
        publisher.publish(b"t", b"x", 1, properties=with_context())
    assert len({span.span_id for span in bench.spans}) == len(bench.spans)


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("context", [SAMPLED, UNSAMPLED, "nonsense", ""])
def test_user_properties_reach_the_subscriber_as_they_were(is_on: bool, context: str) -> None:
    bench = Bench(share=1.0)
    if not is_on:
        bench.lab.service.trace_with(None)
    subscriber = connect(bench.lab)
    subscriber.subscribe(b"t", 1)
    sent = with_context(context, ("a", "b"), ("a", "b"))
    connect(bench.lab).publish(b"t", b"x", 1, properties=sent)
    assert subscriber.take().properties.user_properties == sent.user_properties
    assert bool(bench.spans) == (is_on and context == SAMPLED)


def test_nobody_traces_by_default_and_nothing_is_made_for_it() -> None:
    lab = Lab()
    assert lab.service.mqtt.traces is None
    prg = lab.service.tenants[TENANT].prgs[0]

    def completion(_reply: bytes | None) -> None: ...

    assert prg.traced([b""], completion) is completion


def test_a_publish_that_is_refused_says_so() -> None:
    bench = Bench()
    publisher = connect(bench.lab)
    publisher.publish(b"$SYS/x", b"x", 1, properties=with_context())
    spans = bench.by_name()
    assert set(spans) == {"publish", "authorise"}
    assert all(span.error for span in spans.values())


def test_a_payload_that_is_refused_says_so() -> None:
    bench = Bench()
    publisher = connect(bench.lab)
    wrong = Properties(user_properties=((KEY, SAMPLED),), payload_format_indicator=1)
    publisher.publish(b"t", b"\xff", 1, properties=wrong)
    assert bench.by_name()["publish"].error == "0x99"


def test_a_publish_that_comes_again_is_told_once() -> None:
    bench = Bench()
    publisher = connect(bench.lab)
    packet = Publish(TopicName(b"t"), b"x", 2, packet_id=PacketId(1), properties=with_context())
    publisher.send(packet, packet)
    assert bench.names()["publish"] == bench.names()["authorise"] == 1


def test_a_connect_that_is_refused_says_so() -> None:
    bench = Bench()
    client = connect(
        bench.lab, user_properties=((KEY, SAMPLED),), authentication_method="nobody-has-it"
    )
    assert client.connack.reason_code is ReasonCode.BAD_AUTHENTICATION_METHOD
    assert bench.by_name()["connect"].error == "0x8c"


# Sampling.


def test_a_publish_without_a_context_gets_one_that_its_subscriber_sees() -> None:
    bench = Bench(share=1.0)
    old, new = connect(bench.lab, V311), connect(bench.lab)
    for subscriber in (old, new):
        subscriber.subscribe(b"t", 1)
    connect(bench.lab, V311).publish(b"t", b"x", 1)
    root = next(span for span in bench.spans if span.name == "publish")
    assert root.parent_id == NO_PARENT
    ((key, value),) = new.take().properties.user_properties
    context = read_traceparent(value)
    assert key == KEY and context is not None and context.trace_id == root.trace_id
    assert old.take().payload == b"x"
    assert bench.names()["deliver"] == 2


@pytest.mark.parametrize("at_once", [True, False])
def test_a_share_of_the_publishes_is_sampled(at_once: bool) -> None:
    bench = Bench(share=0.1)
    publisher = connect(bench.lab)
    packets = [
        encode_packet(Publish(TopicName(b"t"), b"x", 1, packet_id=PacketId(1 + number)), V5)
        for number in range(200)
    ]
    if at_once:
        publisher.send(b"".join(packets))
        assert bench.names()["publish"] == 1, "of what comes in one piece, one"
    else:
        for packet in packets:
            publisher.send(packet)
        assert bench.names()["publish"] == 20


def test_an_incident_lets_everything_be_sampled_for_a_while() -> None:
    bench = Bench()
    publisher = connect(bench.lab)
    publisher.publish(b"t", b"x", 1)
    assert not bench.spans
    bench.traces.alerted()
    for _ in range(3):
        publisher.publish(b"t", b"x", 1)
    assert bench.names()["publish"] == 3
    bench.now_ns += ALERT_SECONDS * SECOND_NS
    publisher.publish(b"t", b"x", 1)
    assert bench.names()["publish"] == 3


def test_who_says_sampled_of_everything_costs_no_more_than_the_bound() -> None:
    bench = Bench(spans_per_second_max=30)
    publisher = connect(bench.lab)
    publisher.subscribe(b"t", 1)
    for _ in range(50):
        publisher.publish(b"t", b"x", 1, properties=with_context())
        assert publisher.take().payload == b"x"
    assert len(bench.spans) <= 30 + 4, "a publish that is begun is told to its end"
    assert bench.traces.withheld > 0
    before = len(bench.spans)
    bench.now_ns += SECOND_NS
    publisher.publish(b"t", b"x", 1, properties=with_context())
    assert len(bench.spans) > before


def _mixed(client: Client, lab: Lab) -> list[object]:
    """Publish in all ways in one piece; return what everybody heard, without user properties."""
    topics = [b"a", b"b", b"c/d", b"$SYS/no"]
    pieces: list[bytes] = []
    for number in range(60):
        qos, topic = number % 3, topics[number % 4]
        packet_id = PacketId(number + 1 if qos else 0)
        retain = number % 7 == 0
        packet = Publish(TopicName(topic), b"%d" % number, qos, retain, packet_id=packet_id)
        pieces.append(encode_packet(packet, client.version))
    client.send(b"".join(pieces))
    heard: list[object] = []
    while (packet_or_none := client.receive()) is not None:
        if isinstance(packet_or_none, Publish):
            heard.append((packet_or_none.topic, packet_or_none.payload, packet_or_none.qos))
        else:
            heard.append(packet_or_none)
    return heard


@pytest.mark.parametrize("version", [V311, V5])
def test_what_is_sampled_is_answered_and_delivered_as_what_is_not(version: object) -> None:
    def heard(prepare: Callable[[Bench], None]) -> list[object]:
        bench = Bench(share=1.0)
        prepare(bench)
        client = connect(bench.lab, version, client_id="pub")  # type: ignore[arg-type]
        client.subscribe(b"#", 1)
        return _mixed(client, bench.lab)

    def off(bench: Bench) -> None:
        bench.lab.service.trace_with(None)

    assert heard(lambda bench: bench.traces.alerted()) == heard(off)
