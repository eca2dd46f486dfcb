"""Subscriptions and what they bring: options, overlaps, retained messages (MQTT 5 §3.8)."""

from __future__ import annotations

from itertools import chain

import pytest

from quantum.broker import FanOut, Send, SendVolatile
from quantum.broker.items import (
    BLOCKED,
    NOTHING,
    WANTED,
    Interest,
    MoreRetained,
    Targeted,
    WantRetained,
)
from tests.quantum.broker.desk import THERE, Desk, record, spec


def keeper(**settings: int) -> Desk:
    """A desk with a session whose queue the machine keeps."""
    desk = Desk(**settings)
    desk.attach()
    return desk


QOS = {(0, 2): 0, (1, 2): 1, (2, 2): 2, (2, 1): 1, (2, 0): 0, (1, 0): 0}


@pytest.mark.parametrize(("given", "expected"), QOS.items())
def test_a_message_comes_at_the_lower_of_both_qos(given: tuple[int, int], expected: int) -> None:
    desk = keeper()
    desk.subscribe(spec(b"a", given[1]))
    desk.publish(b"a", b"x", given[0])
    assert [(payload, qos) for _, _, payload, qos in desk.sent()] == [(b"x", expected)]


def test_overlapping_subscriptions_give_one_copy_highest_qos_all_identifiers() -> None:
    desk = keeper()
    desk.subscribe(spec(b"a/+", 1, identifier=7), spec(b"#", 0, identifier=9), spec(b"a/b", 2))
    desk.publish(b"a/b", b"x", 2)
    (sent,) = desk.effects
    assert isinstance(sent, Send) and sent.delivery.qos == 2
    assert sorted(sent.delivery.identifiers) == [7, 9]


def test_a_subscription_is_replaced_by_one_to_the_same_filter() -> None:
    desk = keeper()
    desk.subscribe(spec(b"a", 2, identifier=1))
    desk.subscribe(spec(b"a", 0, identifier=2))
    desk.publish(b"a", b"x", 2)
    (sent,) = desk.effects
    assert isinstance(sent, Send) and (sent.delivery.qos, sent.delivery.identifiers) == (0, (2,))


def test_no_local_keeps_a_client_from_its_own_messages_only() -> None:
    desk = keeper()
    desk.subscribe(spec(b"a", no_local=True))
    desk.publish(b"a", b"own", publisher=b"c")
    assert desk.effects == []
    desk.publish(b"a", b"another's")
    assert desk.payloads() == [b"another's"]
    desk.subscribe(spec(b"#", 1))
    desk.publish(b"a", b"own", 2, publisher=b"c")
    assert [(payload, qos) for _, _, payload, qos in desk.sent()] == [(b"own", 1)]


@pytest.mark.parametrize("as_published", [True, False])
def test_the_retain_flag_of_a_live_message(as_published: bool) -> None:
    desk = keeper()
    desk.subscribe(spec(b"a", retain_as_published=as_published))
    desk.publish(b"a", b"x", retain=True)
    (sent,) = desk.effects
    assert isinstance(sent, Send) and sent.delivery.retain is as_published


def test_a_session_that_only_a_connection_keeps_gets_fan_outs() -> None:
    desk = Desk()
    desk.subscribe(spec(b"a"), epoch=0)
    desk.publish(b"a", b"x")
    (effect,) = desk.effects
    assert isinstance(effect, FanOut) and effect.message.payload == b"x"
    assert [target.client_id for target in effect.route.volatile] == [b"c"]


def test_unsubscribing_says_what_was_there_and_ends_it() -> None:
    desk = keeper()
    desk.subscribe(spec(b"a"), spec(b"b"))
    assert desk.unsubscribe(b"a", b"never").reasons == [0, 0x11]
    desk.publish(b"a")
    assert desk.effects == []
    desk.publish(b"b")
    assert desk.payloads() == [b"p"]


def test_a_session_has_so_many_subscriptions_and_no_more() -> None:
    desk = keeper(subscriptions_max=2)
    assert desk.subscribe(spec(b"a"), spec(b"b"), spec(b"c"), spec(b"a", 1)).reasons == [
        2,
        2,
        0x97,
        1,
    ]


# Interest that other partitions are told of.


def test_others_are_told_of_the_first_and_of_the_last_interest() -> None:
    desk = keeper()
    answer = desk.subscribe(spec(b"far"), spec(b"near"), spec(b"#"))
    assert answer.awaited == [(THERE, 4)]
    told = [each for each in desk.to_there() if isinstance(each, Interest)]
    assert told == [Interest(b"far", WANTED), Interest(b"#", WANTED)]
    desk.attach(b"d")
    desk.subscribe(spec(b"far", retain_handling=2), client_id=b"d")
    desk.unsubscribe(b"far", client_id=b"d")
    assert desk.to_there() == []
    assert desk.unsubscribe(b"far").awaited == [(THERE, 5)]
    assert desk.to_there() == [Interest(b"far", NOTHING)]


def test_a_subscription_waits_for_what_was_said_before_and_is_on_its_way() -> None:
    """Else what is published there after its SUBACK may meet nobody."""
    desk = keeper()
    first = desk.subscribe(spec(b"far", retain_handling=2))
    assert first.awaited == [(THERE, 1)]
    assert desk.subscribe(spec(b"far", retain_handling=2)).awaited == first.awaited
    desk.attach(b"d")
    other = desk.subscribe(spec(b"far", retain_handling=2), client_id=b"d")
    assert other.awaited == first.awaited
    assert desk.unsubscribe(b"far", client_id=b"d").awaited == first.awaited


def test_the_interest_of_others_brings_them_each_message_once() -> None:
    desk = Desk()
    desk.from_there(Interest(b"a/#", WANTED), Interest(b"a/+", WANTED))
    desk.publish(b"a/b")
    assert len(desk.to_there()) == 1
    desk.from_there(Interest(b"a/#", NOTHING), Interest(b"a/+", NOTHING))
    desk.publish(b"a/b")
    assert desk.to_there() == []


def test_blocked_interest_refuses_publishers_until_it_is_lifted() -> None:
    desk = Desk()
    desk.from_there(Interest(b"a", BLOCKED))
    assert desk.publish(b"a", qos=1) == 0x97
    assert desk.publish(b"a", qos=2) == 0x97
    assert desk.to_there() == []
    desk.from_there(Interest(b"a", WANTED))
    assert desk.publish(b"a") == 0


# Retained.


def retained(desk: Desk, *specs: object) -> list[bytes]:
    desk.subscribe(*specs)  # type: ignore[arg-type]
    return sorted(desk.payloads())


def test_the_last_retained_message_comes_with_a_subscription() -> None:
    desk = keeper()
    desk.publish(b"a", b"old", retain=True)
    desk.publish(b"a", b"new", retain=True)
    desk.publish(b"b", b"live")
    desk.subscribe(spec(b"+", 1, identifier=4))
    (sent,) = desk.effects
    assert isinstance(sent, Send) and sent.delivery.message.payload == b"new"
    assert (sent.delivery.retain, sent.delivery.identifiers) == (True, (4,))


def test_an_empty_payload_clears_what_is_retained() -> None:
    desk = keeper()
    desk.publish(b"a", b"x", retain=True)
    desk.publish(b"a", b"", retain=True)
    assert retained(desk, spec(b"a")) == []


def test_what_has_expired_is_not_sent_and_not_kept() -> None:
    desk = keeper()
    desk.publish(b"a", b"x", retain=True, expires_at_ms=5_000)
    desk.publish(b"b", b"y", retain=True)
    desk.elapse(3.999)
    assert len(desk.leader.state.retained) == 2
    desk.elapse(0.001)
    assert len(desk.leader.state.retained) == 1
    assert retained(desk, spec(b"#")) == [b"y"]


def test_what_has_expired_is_not_sent_before_it_is_swept_either() -> None:
    desk = keeper()
    desk.publish(b"a", b"x", retain=True, expires_at_ms=5_000)
    desk.now_ms = 5_000
    assert retained(desk, spec(b"a")) == []


def test_wildcards_do_not_see_the_servers_own_topics() -> None:
    desk = keeper()
    desk.publish(b"$SYS/x", b"own", retain=True)
    desk.publish(b"a", b"x", retain=True)
    assert retained(desk, spec(b"#")) == [b"x"]
    assert retained(desk, spec(b"$SYS/#")) == [b"own"]
    desk.publish(b"$SYS/x", b"own")
    assert desk.payloads() == [b"own"]


@pytest.mark.parametrize(("handling", "expected"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling(handling: int, expected: list[int]) -> None:
    desk = keeper()
    desk.publish(b"a", b"x", retain=True)
    counts = [len(retained(desk, spec(b"a", retain_handling=handling))) for _ in range(2)]
    assert counts == expected


def test_a_shared_subscription_brings_nothing_retained() -> None:
    desk = keeper()
    desk.publish(b"a", b"x", retain=True)
    assert retained(desk, spec(b"a", share=b"g")) == []


def test_retained_messages_come_in_pages_to_a_connection() -> None:
    desk = Desk(retained_page=3)
    for number in range(8):
        desk.publish(b"t/%d" % number, b"%d" % number, retain=True)
    desk.subscribe(spec(b"#"), epoch=0)
    pages = [desk.payloads()]
    assert all(isinstance(each, SendVolatile) for each in desk.effects)
    while desk.leader.next_deadline_ms() is not None:
        desk.elapse(0)
        pages.append(desk.payloads())
    assert [len(page) for page in pages] == [3, 3, 2]
    assert sorted(chain(*pages)) == [b"%d" % number for number in range(8)]
    assert not desk.session(b"c").replays


def test_retained_messages_fill_half_a_queue_at_most_and_go_on_with_the_acknowledgements() -> None:
    desk = Desk(queue_messages_max=8)
    for number in range(10):
        desk.publish(b"t/%d" % number, b"%d" % number, retain=True)
    desk.attach(window=2)
    desk.subscribe(spec(b"#", 1))
    seen = [each[2] for each in desk.sent()]
    for _ in range(30):
        desk.elapse(0)
        assert len(desk.session(b"c").outbound) <= 4
        seen += [each[2] for each in desk.sent()]
        flying = list(desk.session(b"c").outbound.in_flight)
        if flying:
            desk.acknowledge(4, flying[0])
            seen += [each[2] for each in desk.sent()]
    assert seen == [b"%d" % number for number in range(10)]
    assert desk.leader.next_deadline_ms() is None


def test_another_partition_is_answered_in_pages() -> None:
    desk = Desk(retained_page=2)
    for number in range(3):
        desk.publish(b"t/%d" % number, b"%d" % number, retain=True)
    desk.from_there(WantRetained(b"x", 5, b"#", 1, 0))
    first = desk.to_there()
    assert [type(each) for each in first] == [Targeted, Targeted, MoreRetained]
    more = first[2]
    assert isinstance(more, MoreRetained)
    desk.from_there(WantRetained(b"x", 5, b"#", 1, 0, more.after))
    (last,) = desk.to_there()
    assert isinstance(last, Targeted) and (last.qos, last.retain, last.filter) == (1, True, b"#")


def test_the_next_page_is_asked_for_while_the_subscription_lasts() -> None:
    desk = keeper()
    desk.subscribe(spec(b"far/#"))
    epoch = desk.session(b"c").epoch
    assert [type(each) for each in desk.to_there()] == [Interest, WantRetained]
    desk.from_there(MoreRetained(b"c", epoch, b"far/#", 2, 0, b"far/5"))
    (want,) = desk.to_there()
    assert isinstance(want, WantRetained) and want.after == b"far/5"
    desk.unsubscribe(b"far/#")
    desk.to_there()
    desk.from_there(MoreRetained(b"c", epoch, b"far/#", 2, 0, b"far/7"))
    assert desk.to_there() == []
    desk.from_there(
        Targeted(b"c", epoch, record(b"far/8"), 1, retain=True, identifier=0, filter=b"far/#")
    )
    assert desk.effects == []


def test_filters_that_fork_without_end_are_refused_and_others_are_not() -> None:
    """What a publish costs is bounded, however many filters there are."""
    desk = keeper(wild_forks_max=10)
    levels = 8
    for number in range(1 << levels):
        path = [b"+" if number >> bit & 1 else b"a" for bit in range(levels)]
        desk.subscribe(spec(b"/".join(path)))
    trie = desk.leader.state.routes.trie
    topic = b"/".join([b"a"] * levels)
    assert trie.wild_forks == 10
    assert trie.visits(topic) <= levels * (1 + levels + 10)
    refused = desk.subscribe(spec(b"+/+/+/a/+/a/+/a"), spec(b"other/+/x"), spec(b"#"))
    assert refused.reasons == [0x97, 2, 2]
