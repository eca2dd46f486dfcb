"""Bodies that are carried forward: the file begins later, and nothing else changes for anybody."""

from __future__ import annotations

import random

from quantum.broker.queues import CarryMessages, QueueRefusal, QueueSection, SettlementKind
from tests.quantum.broker.queues.queue_desk import QueueDesk


def carry_all(desk: QueueDesk, name: bytes = b"q") -> int:
    queue = desk.queue(name)
    bodies = desk.bodies[queue.file_id]
    rows = [(each.number, each.at, bodies[each.at]) for each in (*queue.live.values(),)]
    rows += [(each.number, each.at, bodies[each.at]) for each in queue.dead.values()]
    return desk.say(CarryMessages(name, rows)).done


def body_of(desk: QueueDesk, number: int) -> bytes:
    queue = desk.queue()
    entry = queue.find(number)
    assert entry is not None
    return desk.bodies[queue.file_id][entry.at]


def test_an_old_dead_letter_lets_go_of_what_stands_behind_it() -> None:
    desk = QueueDesk()
    desk.define()
    desk.enqueue(*(b"%d" % n for n in range(1_000)))
    desk.settle(SettlementKind.REJECTED, 0)
    desk.settle(SettlementKind.ACCEPTED, *range(1, 1_000))
    queue = desk.queue()
    assert (queue.start, len(desk.bodies[queue.file_id])) == (0, 1_000)
    assert carry_all(desk) == 1
    assert (queue.start, queue.next) == (1_000, 1_001)
    assert desk.bodies[queue.file_id] == {1_000: b"0"}
    assert list(queue.dead) == [0]


def test_turns_holders_and_settlements_keep_their_numbers() -> None:
    desk = QueueDesk()
    desk.define()
    desk.enqueue(b"a", b"b", b"c")
    carry_all(desk)
    desk.enqueue(b"d")
    assert list(desk.queue().live) == [0, 1, 2, 6]
    assert [body_of(desk, number) for number in (0, 1, 2, 6)] == [b"a", b"b", b"c", b"d"]
    desk.settle(SettlementKind.ACCEPTED, 1)
    desk.settle(SettlementKind.FAILED, 0)
    assert (list(desk.queue().live), body_of(desk, 0)) == ([0, 2, 6], b"a")


def test_the_same_command_again_changes_nothing() -> None:
    desk = QueueDesk()
    desk.define()
    desk.enqueue(b"a")
    command = CarryMessages(b"q", [(0, 0, b"a")])
    assert [desk.say(command).done for _ in range(3)] == [1, 0, 0]
    assert desk.queue().next == 2
    assert desk.say(CarryMessages(b"q", [(0, 1, b"longer")])).done == 0
    assert desk.say(CarryMessages(b"no", [])).refusal is QueueRefusal.NO_QUEUE


def test_a_place_is_no_number_of_a_message() -> None:
    desk = QueueDesk()
    desk.define()
    desk.enqueue(b"a")
    carry_all(desk)
    assert desk.settle(SettlementKind.ACCEPTED, 1) == 0
    assert desk.queue().entry_at(0) is None
    found = desk.queue().entry_at(1)
    assert found is not None
    assert found.number == 0


def test_totals_follow_whatever_happens() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    desk = QueueDesk()
    for name in (b"q", b"r"):
        desk.define(name)
    for _ in range(200):
        name = rng.choice((b"q", b"r"))
        queue = desk.queue(name)
        match rng.randrange(4):
            case 0:
                desk.enqueue(*(b"x" * rng.randrange(20) for _ in range(4)), name=name)
            case 1:
                kind = rng.choice((SettlementKind.ACCEPTED, SettlementKind.REJECTED))
                desk.settle(kind, *rng.sample(range(queue.next + 1), 1), name=name)
            case 2:
                desk.settle(SettlementKind.FAILED, *list(queue.live)[:2], name=name)
            case _:
                carry_all(desk, name)
        entries = [
            each
            for found in desk.section.queues.values()
            for each in (*found.live.values(), *found.dead.values())
        ]
        held = (len(entries), sum(each.size for each in entries))
        for replica in (desk.leader, desk.chained):
            section = replica.state.sections[2]
            assert isinstance(section, QueueSection)
            assert (section.totals.messages, section.totals.bytes) == held
        assert list(queue.live) == sorted(queue.live)
