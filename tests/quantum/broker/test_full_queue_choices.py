"""C24: a tenant may choose what a full queue costs, instead of letting publishers wait."""

from __future__ import annotations

import pytest

from quantum.broker import PUBACK, Broker, SessionEnd, SetFullQueues
from quantum.broker.full_queues import FULL_REASON, FullQueue
from quantum.broker.reasons import QUOTA_EXCEEDED
from tests.quantum.broker.desk import Desk, spec

MOST = 4


def chosen(policy: FullQueue, *, connected: bool = False, window: int = 1) -> Desk:
    """A lasting session with room for four messages, and a neighbour that wants the same."""
    desk = Desk(queue_messages_max=MOST)
    desk.do(SetFullQueues(desk.now_ms, int(policy)))
    for client_id in (b"c", b"d"):
        desk.attach(client_id, window=window)
        desk.subscribe(spec(b"a", 1), client_id=client_id)
    if not connected:
        desk.detach(b"c")
    return desk


def publish(desk: Desk, count: int) -> list[int]:
    """Publish; the neighbour acknowledges each, so that its queue is never full."""
    codes = []
    for number in range(count):
        codes.append(desk.publish(b"a", b"%d" % number, 1))
        flying = [*desk.session(b"d").outbound.in_flight]
        desk.acknowledge(PUBACK, *flying, client_id=b"d")
    return codes


def waiting(desk: Desk) -> list[bytes]:
    return [each.message.payload for each in desk.session(b"c").outbound.unfinished()]


def test_the_default_blocks() -> None:
    desk = chosen(FullQueue.BLOCK)
    codes = publish(desk, MOST + 2)
    assert codes[:MOST] == [0] * MOST and QUOTA_EXCEEDED in codes[MOST:]
    assert waiting(desk) == [b"0", b"1", b"2", b"3"]
    assert desk.leader.state.dropped_full == {}


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (FullQueue.DROP_OLDEST, [b"3", b"4", b"5", b"6"]),
        (FullQueue.DROP_NEWEST, [b"0", b"1", b"2", b"3"]),
    ],
)
def test_a_full_queue_drops_as_its_tenant_chose(policy: FullQueue, left: list[bytes]) -> None:
    desk = chosen(policy)
    assert publish(desk, MOST + 3) == [0] * (MOST + 3), "nobody is refused for it"
    assert waiting(desk) == left
    state = desk.leader.state
    assert state.dropped_full == {policy: 3} and not state.routes.full
    assert state.dropped == 0, "it is counted by its own cause"
    queues = [session.outbound for session in state.sessions.values()]
    total = sum(each.message.weight for queue in queues for each in queue.unfinished())
    assert state.queued.amount == sum(queue.weight for queue in queues) == total


def test_what_is_in_flight_is_not_dropped() -> None:
    desk = chosen(FullQueue.DROP_OLDEST, connected=True, window=2)
    publish(desk, MOST + 3)
    assert waiting(desk) == [b"0", b"1", b"5", b"6"]


def test_a_session_ends_with_the_message_that_is_too_much() -> None:
    desk = chosen(FullQueue.END_SESSION, connected=True)
    assert publish(desk, MOST) == [0] * MOST
    assert desk.publish(b"a", b"more", 1) == 0
    ended = [each for each in desk.effects if isinstance(each, SessionEnd)]
    assert [(each.client_id, each.reason) for each in ended] == [(b"c", FULL_REASON)]
    state = desk.leader.state
    assert b"c" not in state.sessions and state.dropped_full == {FullQueue.END_SESSION: MOST + 1}
    assert not state.ending and publish(desk, 2) == [0, 0]


def test_another_choice_lets_waiting_publishers_go() -> None:
    desk = chosen(FullQueue.BLOCK)
    publish(desk, MOST + 1)
    assert desk.leader.state.routes.full == {b"c"}
    desk.do(SetFullQueues(desk.now_ms, int(FullQueue.DROP_NEWEST)))
    assert not desk.leader.state.routes.full
    assert publish(desk, 2) == [0, 0] and len(waiting(desk)) == MOST


def test_a_choice_that_nobody_knows_changes_nothing() -> None:
    desk = chosen(FullQueue.DROP_OLDEST)
    desk.do(SetFullQueues(desk.now_ms, 9))
    assert desk.leader.state.full_queues is FullQueue.DROP_OLDEST


def test_the_choice_and_its_cost_are_in_snapshots() -> None:
    desk = chosen(FullQueue.DROP_OLDEST)
    publish(desk, MOST + 3)
    twin = Broker(desk.leader.settings)
    twin.restore(desk.leader.snapshot())
    assert twin.state.full_queues is FullQueue.DROP_OLDEST
    assert twin.state.dropped_full == {FullQueue.DROP_OLDEST: 3}
    assert twin.digest() == desk.leader.digest()


def test_a_choice_that_is_taken_back_is_a_change_too() -> None:
    """The desk compares what a chain of deltas leads to after every command."""
    desk = chosen(FullQueue.DROP_OLDEST)
    desk.do(SetFullQueues(desk.now_ms, int(FullQueue.BLOCK)))
    assert desk.leader.state.full_queues is FullQueue.BLOCK
    assert publish(desk, MOST + 1)[-1] == QUOTA_EXCEEDED
