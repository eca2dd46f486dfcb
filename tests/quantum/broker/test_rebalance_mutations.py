"""Bugs planted into a move on purpose: growing worlds must catch each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quantum.broker import (
    delivering,
    moving,
    publishing,
    rebalancing,
    receiving,
    restoring,
)
from quantum.broker.errors import BrokerError
from quantum.broker.items import Began, Item
from quantum.broker.message import Message
from quantum.broker.move import Move
from quantum.broker.routes import TopicRoute
from quantum.broker.shares import ShareGroup
from quantum.broker.state import BrokerState
from tests.quantum.broker import test_rebalance_steps
from tests.quantum.broker.partition import Partition
from tests.quantum.broker.test_rebalance import GROWTHS, run_growing

Patch = pytest.MonkeyPatch


def sessions_that_leave_are_not_fenced(patch: Patch) -> None:
    patch.setattr(BrokerState, "is_fenced", lambda state, client_id: False)
    patch.setattr(rebalancing, "fence_leaving", lambda state: None)


def sessions_that_leave_still_get_everything(patch: Patch) -> None:
    deliver = delivering.deliver_here

    def generous(state: BrokerState, route: TopicRoute, message: Message, **_: Any) -> None:
        deliver(state, route, message, to_leaving=True)

    patch.setattr(publishing, "deliver_here", generous)
    patch.setattr(receiving, "deliver_here", generous)


def sessions_that_leave_get_nothing_any_more(patch: Patch) -> None:
    deliver = delivering.deliver_here

    def hasty(state: BrokerState, route: TopicRoute, message: Message, **_: Any) -> None:
        deliver(state, route, message, to_leaving=False)

    patch.setattr(receiving, "deliver_here", hasty)


def a_session_is_handed_over_twice(patch: Patch) -> None:
    hand_over = moving._hand_over

    def twice(state: BrokerState, channel: int, session: Any) -> None:
        hand_over(state, channel, session)
        hand_over(state, channel, session)

    patch.setattr(moving, "_hand_over", twice)


def a_cut_waits_for_nobody(patch: Patch) -> None:
    patch.setattr(rebalancing, "_old_peers", lambda state, move: [])


def a_cut_does_not_wait_for_the_answers(patch: Patch) -> None:
    patch.setattr(Partition, "_passes_to", lambda partition, old_count: False)


def nobody_waits_until_deliveries_are_taken(patch: Patch) -> None:
    patch.setattr(rebalancing, "_have_it", lambda state, move: True)


def a_fresh_partition_opens_with_the_first_part(patch: Patch) -> None:
    def hasty(state: BrokerState) -> bool:
        return state.move is not None and not state.is_open and bool(state.move.ended)

    patch.setattr(receiving, "is_complete", hasty)


def a_fresh_partition_takes_ordinary_channels_at_once(patch: Patch) -> None:
    begin = rebalancing.begin

    def open_minded(state: BrokerState, began: Began) -> None:
        begin(state, began)
        state.is_open = True

    patch.setattr(rebalancing, "begin", open_minded)


def fresh_partitions_get_what_they_asked_for_only(patch: Patch) -> None:
    begin = rebalancing.begin

    def seeing(state: BrokerState, began: Began) -> None:
        begin(state, began)
        state.routes.blind.clear()

    patch.setattr(rebalancing, "begin", seeing)


def messages_that_waited_are_forgotten(patch: Patch) -> None:
    open_up = rebalancing.open_up

    def forgetful(state: BrokerState, move: Move) -> None:
        open_up(state, move)
        move.held.clear()

    patch.setattr(receiving, "open_up", forgetful)


def messages_do_not_wait_for_their_sessions(patch: Patch) -> None:
    def impatient(state: BrokerState, origin: int, item: Item) -> None:
        state.is_open = True
        receiving._on_item(state, origin, item)
        state.is_open = False

    patch.setattr(receiving, "_hold", impatient)


def deliveries_before_the_cut_go_the_ordinary_way(patch: Patch) -> None:
    patch.setattr(BrokerState, "way", lambda state, prg: prg)


def places_begin_anew_with_a_ring(patch: Patch) -> None:
    begin = rebalancing.begin

    def forgetful(state: BrokerState, began: Began) -> None:
        begin(state, began)
        state.channels.counted = {
            prg: max(0, place - 3) for prg, place in state.channels.counted.items()
        }

    patch.setattr(rebalancing, "begin", forgetful)


def numbers_of_passed_on_publishes_begin_anew(patch: Patch) -> None:
    begin = rebalancing.begin

    def forgetful(state: BrokerState, began: Began) -> None:
        begin(state, began)
        for forwarded in state.channels.forwarded.values():
            forwarded.number = max(0, forwarded.number - 1)

    patch.setattr(rebalancing, "begin", forgetful)


def accepted_publishes_are_not_remembered(patch: Patch) -> None:
    take_in = moving.take_in_session

    def forgetful(state: BrokerState, item: Any) -> None:
        take_in(state, item)
        state.sessions[item.client_id].received.clear()

    patch.setattr(receiving, "take_in_session", forgetful)


def retained_messages_stay_behind(patch: Patch) -> None:
    patch.setattr(rebalancing, "moving_topics", lambda state: [])
    patch.setattr(restoring, "moving_topics", lambda state: [])


def members_stay_where_they_were(patch: Patch) -> None:
    patch.setattr(ShareGroup, "rehome", lambda group, home: None)


def interest_is_not_told_to_fresh_partitions(patch: Patch) -> None:
    patch.setattr(rebalancing, "_tell_fresh", lambda state, old_count: None)


def snapshots_forget_the_move(patch: Patch) -> None:
    patch.setattr(restoring, "_restore_move", lambda state, frozen: None)


def exact_filters_stay_behind(patch: Patch) -> None:
    patch.setattr(rebalancing, "_forget_exact_filters", lambda state: None)


MUTATIONS = [
    sessions_that_leave_still_get_everything,
    sessions_that_leave_get_nothing_any_more,
    a_session_is_handed_over_twice,
    a_cut_waits_for_nobody,
    a_cut_does_not_wait_for_the_answers,
    nobody_waits_until_deliveries_are_taken,
    a_fresh_partition_opens_with_the_first_part,
    a_fresh_partition_takes_ordinary_channels_at_once,
    fresh_partitions_get_what_they_asked_for_only,
    messages_that_waited_are_forgotten,
    messages_do_not_wait_for_their_sessions,
    deliveries_before_the_cut_go_the_ordinary_way,
    places_begin_anew_with_a_ring,
    numbers_of_passed_on_publishes_begin_anew,
    accepted_publishes_are_not_remembered,
    retained_messages_stay_behind,
    members_stay_where_they_were,
    interest_is_not_told_to_fresh_partitions,
    snapshots_forget_the_move,
    exact_filters_stay_behind,
]
SEEDS = range(12)


def caught_by() -> str | None:
    """Name the world that notices something, or None."""
    for name, test in vars(test_rebalance_steps).items():
        if name.startswith("test_") and not hasattr(test, "pytestmark"):
            try:
                test()
            except (AssertionError, BrokerError, KeyError, IndexError, ValueError):
                return name
    return caught_by_the_world()


def caught_by_the_world() -> str | None:
    for seed in SEEDS:
        for name in ("3 to 5", "busy, 3 to 6"):
            plan, counts = GROWTHS[name]
            try:
                run_growing(seed, plan, counts, 300 // len(counts))
            except (AssertionError, BrokerError, KeyError, IndexError, ValueError):
                return f"{name} {seed}"
    return None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_the_world_alone_catches_it(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    assert caught_by_the_world() is not None


def test_a_missing_fence_is_caught(monkeypatch: Patch) -> None:
    """Leaders keep clients away as well, so that worlds alone would not notice."""
    sessions_that_leave_are_not_fenced(monkeypatch)
    assert caught_by() is not None
