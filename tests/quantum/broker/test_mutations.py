"""Bugs planted on purpose: the small world, or a table beside it, must catch each of them.

A mutation changes one decision, as a careless change of the code would. If one ever survives,
the tests have a hole: add the story that kills it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from quantum.broker import (
    Attach,
    Part,
    SendPubrec,
    attaching,
    congestion,
    delivering,
    interest,
    limiting,
    outbound,
    publishing,
    receiving,
    restoring,
    shares,
    sharing,
    subscribing,
)
from quantum.broker.channels import Channels, Forwarded, Outbox
from quantum.broker.errors import BrokerError
from quantum.broker.holdings import Holdings
from quantum.broker.items import Forward
from quantum.broker.message import decode_record
from quantum.broker.outbound import Delivery, Outbound
from quantum.broker.parts import Parts
from quantum.broker.routes import Routes
from quantum.broker.session import ACCEPTED, Session
from quantum.broker.shares import ShareGroup, ShareMember
from quantum.broker.state import BrokerState
from tests.quantum.broker import (
    test_channels,
    test_fuzz,
    test_holdings,
    test_parts,
    test_queues,
    test_sessions,
    test_shares,
    test_subscriptions,
)
from tests.quantum.broker.test_world import PLANS, run

Patch = pytest.MonkeyPatch


def an_item_counts_twice(patch: Patch) -> None:
    patch.setattr(Channels, "count", lambda channels, origin, sequence: True)


def a_passed_on_publish_counts_twice(patch: Patch) -> None:
    def forgetful(channels: Channels, origin: int, term: int) -> Forwarded:
        found = channels.forwarded.setdefault(origin, Forwarded(term))
        found.number = 0
        return found

    patch.setattr(Channels, "forwarded_by", forgetful)


def a_repeated_publish_is_answered_with_success(patch: Patch) -> None:
    patch.setattr(Forwarded, "answer", lambda forwarded, number: 0)


def a_deposed_leader_is_answered_with_success(patch: Patch) -> None:
    patch.setattr(publishing, "NOT_COUNTED", b"")


def an_outbox_forgets_one_too_many(patch: Patch) -> None:
    acked = Outbox.acked

    def greedy(outbox: Outbox, through: int) -> list[tuple[Any, Forward]]:
        return acked(outbox, through + 1)

    patch.setattr(Outbox, "acked", greedy)


def pubrec_before_the_owner_has_the_message(patch: Patch) -> None:
    forward = publishing._forward_once

    def hasty(state: BrokerState, session: Session, owner: int, message: Any) -> int:
        reason = forward(state, session, owner, message)
        if not reason:
            session.received[message.packet_id] = (owner, ACCEPTED)
            state.emit(SendPubrec(session.client_id, message.packet_id))
            state.channels.to(owner).items.pop()
        return reason

    patch.setattr(publishing, "_forward_once", hasty)


def qos_2_is_not_remembered(patch: Patch) -> None:
    publish = publishing._publish_once

    def forgetful(state: BrokerState, message: Any, record: bytes) -> int:
        session = state.sessions.get(message.client_id)
        if session is not None:
            session.received.pop(message.packet_id, None)
        return publish(state, message, record)

    patch.setattr(publishing, "_publish_once", forgetful)


def what_was_accepted_elsewhere_is_refused(patch: Patch) -> None:
    def publish_forward(state: BrokerState, origin: int, record: bytes) -> None:
        publishing.publish(state, decode_record(record)[0])

    patch.setattr(receiving, "publish_forward", publish_forward)


def congestion_is_never_lifted(patch: Patch) -> None:
    patch.setattr(congestion, "send_item", lambda state, prg, item: 0 if not item.refuse else 1)


def a_full_queue_stays_full(patch: Patch) -> None:
    patch.setattr(delivering, "_has_room", lambda state, outbound: False)


def a_full_queue_refuses_nobody(patch: Patch) -> None:
    patch.setattr(publishing, "_has_room", lambda state, route: True)


def attachments_are_log_indexes(patch: Patch) -> None:
    patch.setattr(BrokerState, "next_attachment", lambda state: state.applied_index)


def the_queue_is_overtaken(patch: Patch) -> None:
    def impatient(outbound: Outbound, delivery: Delivery) -> bool:
        outbound.weight += delivery.message.weight
        if len(outbound.in_flight) >= outbound.window:
            outbound.queue.appendleft(delivery)
            return False
        outbound._start(delivery)
        return True

    patch.setattr(Outbound, "push", impatient)


def qos_2_is_sent_again_under_a_new_packet_id(patch: Patch) -> None:
    def careless(outbound: Outbound) -> list[Delivery]:
        again = [each for each in outbound.in_flight.values() if each.state == outbound_sent]
        for delivery in reversed(again):
            del outbound.in_flight[delivery.packet_id]
            outbound.queue.appendleft(delivery)
        return list(outbound.in_flight.values())

    outbound_sent = outbound.SENT
    patch.setattr(Outbound, "resume", careless)


def pubrel_is_not_sent_again(patch: Patch) -> None:
    resume = Outbound.resume

    def silent(outbound: Outbound) -> list[Delivery]:
        resume(outbound)
        return []

    patch.setattr(Outbound, "resume", silent)


def members_that_die_keep_their_messages(patch: Patch) -> None:
    patch.setattr(attaching, "take_back", lambda state, sessions: None)


def begun_qos_2_goes_to_another_member(patch: Patch) -> None:
    patch.setattr(sharing, "_is_another_members", lambda delivery: bool(delivery.share))


def turns_for_members_that_left_are_dropped(patch: Patch) -> None:
    patch.setattr(receiving, "give_back", lambda state, share, topic_filter, message: None)


def groups_in_the_order_they_came(patch: Patch) -> None:
    work_out = Routes._work_out

    def unsorted(routes: Routes, topic: bytes) -> Any:
        route = work_out(routes, topic)
        order = list(routes._groups)
        route.shares.sort(key=lambda group: order.index((group.name, group.filter)))
        route.shares.reverse()
        return route

    def restore(state: BrokerState, frozen: Any) -> None:
        groups = dict(state.groups)
        state.groups.clear()
        original(state, frozen)
        state.groups.update(groups)

    original = restoring._restore_group
    patch.setattr(Routes, "_work_out", unsorted)
    patch.setattr(restoring, "_restore_group", restore)


def a_turn_that_replicas_do_not_share(patch: Patch) -> None:
    pick = ShareGroup.pick

    def own(
        group: ShareGroup, unreachable: frozenset[int] = frozenset(), key: bytes | None = None
    ) -> ShareMember | None:
        turn = group.turn
        found = pick(group, unreachable, key)
        group.turn = turn + 1 + (id(group) >> 4) % 2
        return found

    patch.setattr(ShareGroup, "pick", own)


def snapshots_without_the_unsent(patch: Patch) -> None:
    restore = restoring.restore_session

    def forgetful(state: BrokerState, frozen: Any) -> Session:
        session = restore(state, frozen)
        session.outbound.unsent = []
        return session

    patch.setattr(restoring, "restore_session", forgetful)


def snapshots_without_deadlines(patch: Patch) -> None:
    patch.setattr(restoring, "finish", lambda state: None)


def interest_is_told_after_a_restart_only(patch: Patch) -> None:
    tell = interest.tell

    def hushed(state: BrokerState, topic_filter: bytes) -> None:
        if state.filters.get(topic_filter):
            tell(state, topic_filter)

    patch.setattr(attaching, "tell", hushed)


def leaders_count_what_followers_skip(patch: Patch) -> None:
    deliver = delivering.deliver_here

    def counting(state: BrokerState, route: Any, message: Any) -> None:
        if state.effects is not None and message.expires_at_ms:
            state.dropped += 1
        deliver(state, route, message)

    patch.setattr(publishing, "deliver_here", counting)


def a_will_survives_a_reconnect(patch: Patch) -> None:
    attach = attaching.apply_attach

    def keeping(state: BrokerState, command: Attach) -> bytes:
        session = state.sessions.get(command.client_id)
        will, due_ms = (session.will, session.will_due_ms) if session else (None, 0)
        reply = attach(state, command)
        if command.will is None and not command.clean_start:
            state.sessions[command.client_id].will = will
            state.sessions[command.client_id].will_due_ms = due_ms
        return reply

    patch.setattr("quantum.broker.machine.apply_attach", keeping)


def deadlines_pile_up(patch: Patch) -> None:
    def look_again(state: BrokerState, at_ms: int, session: Session) -> None:
        session.look_at_ms = at_ms
        state.deadlines.append((at_ms, session.client_id))
        state.deadlines.sort()

    patch.setattr(BrokerState, "look_again", look_again)


def retained_messages_come_all_at_once(patch: Patch) -> None:
    patch.setattr("quantum.broker.replaying.room_for_retained", lambda state, session: 1 << 30)


def a_quota_is_only_advice(patch: Patch) -> None:
    for room in (attaching, subscribing, limiting):
        patch.setattr(room, "judge", lambda state, nth, amount: 0)


def sessions_that_ended_weigh_on(patch: Patch) -> None:
    patch.setattr(Outbound, "leave", lambda outbound: None)


def full_stores_are_not_told(patch: Patch) -> None:
    patch.setattr(limiting, "send_item", lambda state, prg, item: 0)


def a_grace_that_snapshots_forget(patch: Patch) -> None:
    restore = Holdings.restore

    def forgetful(holdings: Holdings, shares: Any, ceilings: Any, graces: Any) -> None:
        restore(holdings, shares, ceilings, [(-1, -1)] * len(graces))

    patch.setattr(Holdings, "restore", forgetful)


def keys_belong_to_whoever_came_first(patch: Patch) -> None:
    patch.setattr(shares, "owner_of_key", lambda members, key: members[len(key) % len(members)])


def parts_outlive_their_leader(patch: Patch) -> None:
    def take(parts: Parts, part: Part) -> bytes | None:
        parts.add(part.data)
        if part.number + 1 < part.count:
            return b""
        whole, parts.pieces = b"".join(parts.pieces), []
        return whole

    patch.setattr(Parts, "take", take)
    patch.setattr(Parts, "forget", lambda parts: None)


MUTATIONS = [
    a_quota_is_only_advice,
    sessions_that_ended_weigh_on,
    full_stores_are_not_told,
    a_grace_that_snapshots_forget,
    keys_belong_to_whoever_came_first,
    parts_outlive_their_leader,
    an_item_counts_twice,
    a_passed_on_publish_counts_twice,
    a_repeated_publish_is_answered_with_success,
    a_deposed_leader_is_answered_with_success,
    an_outbox_forgets_one_too_many,
    pubrec_before_the_owner_has_the_message,
    qos_2_is_not_remembered,
    what_was_accepted_elsewhere_is_refused,
    congestion_is_never_lifted,
    a_full_queue_stays_full,
    a_full_queue_refuses_nobody,
    attachments_are_log_indexes,
    the_queue_is_overtaken,
    qos_2_is_sent_again_under_a_new_packet_id,
    pubrel_is_not_sent_again,
    members_that_die_keep_their_messages,
    begun_qos_2_goes_to_another_member,
    turns_for_members_that_left_are_dropped,
    groups_in_the_order_they_came,
    a_turn_that_replicas_do_not_share,
    snapshots_without_the_unsent,
    snapshots_without_deadlines,
    interest_is_told_after_a_restart_only,
    leaders_count_what_followers_skip,
    a_will_survives_a_reconnect,
    deadlines_pile_up,
    retained_messages_come_all_at_once,
]

TABLES = (
    test_holdings,
    test_parts,
    test_channels,
    test_shares,
    test_queues,
    test_sessions,
    test_subscriptions,
    test_fuzz,
)


def stories() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every test of the tables that needs nothing, and some worlds."""
    for module in TABLES:
        for name, test in vars(module).items():
            needs_something = hasattr(test, "pytestmark") or hasattr(test, "hypothesis")
            if name.startswith("test_") and not needs_something:
                yield name, test
    for seed in range(6):
        for plan in PLANS:
            yield f"world {plan} {seed}", partial(run, seed, PLANS[plan], 600)


def caught_by() -> str | None:
    """Name the story that notices something, or None."""
    for name, story in stories():
        try:
            story()
        except (AssertionError, BrokerError, KeyError, IndexError, ValueError):
            return name
    return None


def caught_by_the_world() -> bool:
    for name, story in stories():
        if name.startswith("world"):
            try:
                story()
            except (AssertionError, BrokerError, KeyError, IndexError, ValueError):
                return True
    return False


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_planted_bug_is_caught(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    assert caught_by() is not None


# What no table tells, or what a service depends on most: the world alone must notice.
BY_THE_WORLD = [
    an_item_counts_twice,
    a_passed_on_publish_counts_twice,
    a_deposed_leader_is_answered_with_success,
    an_outbox_forgets_one_too_many,
    pubrec_before_the_owner_has_the_message,
    qos_2_is_not_remembered,
    what_was_accepted_elsewhere_is_refused,
    the_queue_is_overtaken,
    qos_2_is_sent_again_under_a_new_packet_id,
    pubrel_is_not_sent_again,
    begun_qos_2_goes_to_another_member,
    turns_for_members_that_left_are_dropped,
]


@pytest.mark.parametrize("mutation", BY_THE_WORLD, ids=lambda mutation: mutation.__name__)
def test_the_world_alone_catches_it(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    assert caught_by_the_world()


def test_nothing_is_caught_where_no_bug_was_planted() -> None:
    assert caught_by() is None
