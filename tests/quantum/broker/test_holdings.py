"""What a tenant holds is bounded in every partition, and every replica refuses the same."""

from __future__ import annotations

import pytest

from quantum.broker import PUBACK, PublishOnce, SetPolicy, decode_refusals
from quantum.broker.holdings import (
    GROUPS,
    RETAINED_BYTES,
    RETAINED_TOPICS,
    SESSION_BYTES,
    SESSIONS,
    SUBSCRIPTIONS,
)
from quantum.broker.items import Forward, Interest, Pressure, StoreFull
from quantum.broker.limiting import held, is_over_quota
from quantum.broker.reasons import QUOTA_EXCEEDED, QUOTA_EXHAUSTED, SUCCESS
from quantum.tenancy import GRACE_MS, HELD, Quotas, is_stale, plan_shares
from tests.quantum.broker.desk import Desk, record, spec

DAY_SECONDS = GRACE_MS // 1000
PLENTY = 1 << 40


def bound(desk: Desk, nth: int, quota: int, ceiling: int | None = None) -> None:
    """Let a partition hold so much of one resource, and plenty of the others."""
    shares, ceilings = [PLENTY] * len(HELD), [PLENTY] * len(HELD)
    shares[nth] = quota
    ceilings[nth] = quota * 3 // 2 if ceiling is None else ceiling
    desk.do(SetPolicy(desk.now_ms, shares, ceilings))


def test_retained_topics_are_admitted_throttled_rejected_and_at_last_disconnected() -> None:
    desk = Desk()
    bound(desk, RETAINED_TOPICS, 2)
    reasons = [desk.publish(b"t/%d" % n, b"x", retain=True) for n in range(4)]
    assert reasons == [SUCCESS, SUCCESS, SUCCESS, QUOTA_EXCEEDED]
    assert is_over_quota(desk.leader.state)
    assert desk.publish(b"t/0", b"another", retain=True) == SUCCESS  # not one more
    desk.elapse(DAY_SECONDS)
    assert desk.publish(b"t/9", b"x", retain=True) == QUOTA_EXHAUSTED
    assert desk.publish(b"t/1", b"", retain=True) == SUCCESS
    assert desk.publish(b"t/2", b"", retain=True) == SUCCESS
    assert desk.publish(b"t/9", b"x", retain=True) == SUCCESS  # within the quota again
    assert not is_over_quota(desk.leader.state)


def test_retained_bytes_are_bounded_and_less_is_always_taken() -> None:
    desk = Desk()
    bound(desk, RETAINED_BYTES, 1_000)
    assert desk.publish(b"a", b"x" * 900, retain=True) == SUCCESS
    assert desk.publish(b"b", b"x" * 400, retain=True) == SUCCESS  # throttled
    assert desk.publish(b"c", b"x" * 400, retain=True) == QUOTA_EXCEEDED
    assert desk.publish(b"a", b"x" * 800, retain=True) == SUCCESS
    assert len(desk.leader.state.retained) == 2
    assert desk.publish(b"c", b"x" * 400) == SUCCESS  # not to be retained


def test_qos_0_beyond_the_quota_leaves_no_older_message_behind() -> None:
    """[MQTT-3.3.1-7]: discarded, and there is no retained message for the topic then."""
    desk = Desk()
    desk.attach()
    desk.subscribe(spec(b"#"))
    bound(desk, RETAINED_BYTES, 300, 300)
    assert desk.publish(b"a", b"x", retain=True) == SUCCESS
    desk.publish(b"a", b"y" * 500, qos=0, retain=True, packet_id=0)
    assert desk.payloads() == [b"y" * 500]  # it is delivered all the same
    assert desk.leader.state.retained.get(b"a") is None


def test_sessions_beyond_the_quota_are_refused_and_those_there_go_on() -> None:
    desk = Desk()
    bound(desk, SESSIONS, 2, 2)
    assert desk.attach(b"1").refused == desk.attach(b"2").refused == SUCCESS
    assert desk.attach(b"3").refused == QUOTA_EXCEEDED
    assert desk.subscribe(spec(b"a"), client_id=b"4", epoch=0).reasons == [QUOTA_EXCEEDED]
    assert desk.attach(b"1").present
    assert desk.attach(b"2", clean=True).refused == SUCCESS  # one for the other
    desk.detach(b"2", expiry=0)
    assert desk.attach(b"3").refused == SUCCESS
    assert held(desk.leader.state)[SESSIONS] == 2


def test_subscriptions_and_groups_beyond_the_quota_are_refused() -> None:
    desk = Desk()
    desk.attach()
    bound(desk, SUBSCRIPTIONS, 2, 2)
    assert desk.subscribe(spec(b"a"), spec(b"b"), spec(b"c")).reasons == [2, 2, QUOTA_EXCEEDED]
    assert desk.subscribe(spec(b"a", 1)).reasons == [1]  # the same again
    bound(desk, GROUPS, 1, 1)
    one, other = spec(b"a", share=b"g"), spec(b"a", share=b"h")
    assert desk.subscribe(one, other).reasons == [2, QUOTA_EXCEEDED]
    desk.attach(b"d")
    assert desk.subscribe(one, client_id=b"d").reasons == [2]  # the group is there


def sleeper(desk: Desk, topic_filter: bytes = b"a") -> None:
    desk.attach(b"sleeper", expiry=2 * DAY_SECONDS)
    desk.subscribe(spec(topic_filter), client_id=b"sleeper")
    desk.detach(b"sleeper")
    desk.to_there()


def test_queues_together_block_their_publishers_here_and_elsewhere() -> None:
    """§13: the queues of lasting sessions are bounded for the tenant too."""
    desk = Desk()
    sleeper(desk)
    bound(desk, SESSION_BYTES, 1_000, 1_500)
    reasons = [desk.publish(b"a", b"x" * 500) for _ in range(5)]
    assert reasons == [SUCCESS] * 3 + [QUOTA_EXCEEDED] * 2
    assert desk.to_there() == [StoreFull(0, full=True)]
    assert desk.publish(b"b", b"x" * 500) == SUCCESS  # nobody keeps it
    desk.attach(b"sleeper")
    packet_ids = [packet_id for _, packet_id, _, _ in desk.sent()]
    desk.acknowledge(PUBACK, *packet_ids, client_id=b"sleeper")
    assert StoreFull(0, full=False) in desk.to_there()
    assert desk.publish(b"a", b"x") == SUCCESS


def test_the_grace_of_full_queues_ends_too() -> None:
    desk = Desk()
    sleeper(desk)
    bound(desk, SESSION_BYTES, 500, 5_000)
    assert [desk.publish(b"a", b"x" * 500) for _ in range(2)] == [SUCCESS] * 2
    desk.elapse(DAY_SECONDS)
    assert desk.publish(b"a", b"x") == QUOTA_EXHAUSTED


def test_full_queues_elsewhere_block_what_they_would_get() -> None:
    desk = Desk()
    desk.from_there(Interest(b"a", 1), StoreFull(1, full=True))
    assert desk.publish(b"a") == QUOTA_EXCEEDED
    assert desk.publish(b"b") == SUCCESS
    desk.from_there(Forward(record(b"a", qos=2)))  # accepted elsewhere: it is taken, and said
    assert Pressure(b"a", refuse=True) in desk.to_there()
    desk.from_there(StoreFull(1, full=False))
    assert desk.publish(b"a") == SUCCESS
    assert Pressure(b"a", refuse=False) in desk.to_there()


def test_a_session_that_ends_weighs_nothing() -> None:
    desk = Desk()
    sleeper(desk)
    desk.publish(b"a", b"x" * 500)
    assert held(desk.leader.state)[SESSION_BYTES] > 500
    desk.attach(b"sleeper", clean=True)
    assert held(desk.leader.state)[SESSION_BYTES] == 0


def test_qos_2_elsewhere_is_stopped_before_it_retains_too_much() -> None:
    desk = Desk()
    bound(desk, RETAINED_TOPICS, 1, 1)
    for nth in range(2):
        desk.from_there(Forward(record(b"t/%d" % nth, qos=2, retain=1)))
    assert len(desk.leader.state.retained) == 2  # what was accepted is kept
    assert desk.to_there() == [Pressure(b"", refuse=True)]
    desk.publish(b"t/0", b"", retain=True)
    assert desk.to_there() == []
    desk.publish(b"t/1", b"", retain=True)
    assert desk.to_there() == [Pressure(b"", refuse=False)]


def test_a_partition_that_is_told_so_refuses_qos_2_to_be_retained_elsewhere() -> None:
    desk = Desk()
    epoch = desk.attach().epoch
    desk.from_there(Pressure(b"", refuse=True))
    kept = record(b"far", qos=2, retain=1, publisher=b"c", epoch=epoch)
    plain = record(b"far", qos=2, publisher=b"c", packet_id=2, epoch=epoch)
    reply = desk.do(PublishOnce(desk.now_ms, [kept, plain]))
    assert decode_refusals(reply) == [(0, QUOTA_EXCEEDED)]


@pytest.mark.parametrize("length", [0, 5, 7])
def test_shares_of_another_length_change_nothing(length: int) -> None:
    desk = Desk()
    before = desk.leader.state.holdings.shares
    desk.do(SetPolicy(desk.now_ms, [1] * length, [1] * len(HELD)))
    assert desk.leader.state.holdings.shares == before


def test_shares_add_up_to_the_quota_and_favour_who_holds_more() -> None:
    quotas = Quotas(sessions=100)
    used = [(0, 0, 0, sessions, 0, 0) for sessions in (70, 10, 0)]
    parts = [plan_shares(quotas, used, here, 3)[0][SESSIONS] for here in range(3)]
    assert parts == [77, 17, 7]
    ceilings = [plan_shares(quotas, used, here, 3)[1][SESSIONS] for here in range(3)]
    assert sum(ceilings) <= 150 + 3
    too_much = [(0, 0, 0, sessions, 0, 0) for sessions in (90, 60, 0)]
    parts = [plan_shares(quotas, too_much, here, 3)[0][SESSIONS] for here in range(3)]
    assert parts == [60, 40, 0]  # both hold more than that: their grace goes on


def test_shares_are_given_anew_only_where_that_matters() -> None:
    quotas, own = Quotas(sessions=800), (0, 0, 0, 10, 0, 0)
    now = plan_shares(quotas, [own, own], 0, 2)[0]

    def planned(sessions: int) -> tuple[int, ...]:
        return (*now[:SESSIONS], sessions, *now[SESSIONS + 1 :])

    assert not is_stale(quotas, own, now, now)
    assert not is_stale(quotas, own, now, planned(now[SESSIONS] + 50))
    assert is_stale(quotas, own, now, planned(now[SESSIONS] + 101))
    assert is_stale(quotas, (0, 0, 0, 380, 0, 0), now, planned(now[SESSIONS] + 1))
