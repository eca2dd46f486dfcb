"""Who gets which message: turns, credit, groups, exclusion, browsing, drains and reads."""

from __future__ import annotations

from quantum.broker.queues import Queue, QueueEntry, QueueSpec
from quantum.protocols.amqp.session.dispatch_words import ReceiverMode
from quantum.protocols.amqp.session.queue_dispatch import QueueDispatch, QueueReceiver


class Port:
    """A receiver's connection that remembers."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.drains: list[int] = []

    def deliver(self, deliveries: list[tuple[QueueEntry, bytes]]) -> None:
        self.got += [entry.number for entry, _ in deliveries]

    def settled(self, numbers: list[int]) -> None:
        raise AssertionError("nothing is settled here")

    def drained(self, drain: int) -> None:
        self.drains.append(drain)

    def ended(self, why: int) -> None:
        raise AssertionError("nothing ends here")


class Bench:
    """A queue, its dispatch, and what was asked of the disk."""

    def __init__(self) -> None:
        self.queue = Queue(1, QueueSpec(b"q"), 0)
        self.reads: list[int] = []
        self.dispatch = QueueDispatch(b"q", dead=False, read=lambda _, n: self.reads.append(n))

    def put(
        self, *numbers: int, group: bytes = b"", priority: int = 4, at_hand: bool = True
    ) -> None:
        for number in numbers:
            self.queue.put(QueueEntry(number, 1, 0, priority, 0, group))
        payloads = [b"x"] * len(numbers) if at_hand else []
        self.dispatch.grew(self.queue, list(numbers), payloads)

    def receiver(self, limit: int, mode: ReceiverMode = ReceiverMode.MOVE) -> QueueReceiver:
        receiver = QueueReceiver(Port(), mode, None)
        receiver.limit = limit
        self.dispatch.add(receiver, self.queue, [])
        return receiver

    def go(self) -> None:
        self.dispatch.dispatch(self.queue)


def got(receiver: QueueReceiver) -> list[int]:
    assert isinstance(receiver.port, Port)
    return receiver.port.got


def test_receivers_take_turns_and_none_gets_more_than_its_credit() -> None:
    bench = Bench()
    one, two = bench.receiver(2), bench.receiver(10)
    bench.put(*range(6))
    bench.go()
    assert got(one) == [0, 2]
    assert got(two) == [1, 3, 4, 5]
    assert one.held == {0, 2}


def test_a_message_is_given_to_one_until_it_is_released() -> None:
    bench = Bench()
    one = bench.receiver(10)
    bench.put(0)
    bench.go()
    bench.go()
    assert got(one) == [0]
    bench.dispatch.release(bench.queue, 0)
    bench.go()
    assert bench.reads == [0], "its body is read again"
    bench.dispatch.read_done([(0, b"x")])
    bench.go()
    assert got(one) == [0, 0]


def test_priorities_go_first() -> None:
    bench = Bench()
    bench.put(0, 1)
    bench.put(2, priority=9)
    one = bench.receiver(10)
    bench.go()
    assert got(one) == [2, 0, 1]


def test_a_group_has_one_receiver_and_keeps_nobody_else_waiting() -> None:
    bench = Bench()
    one, two = bench.receiver(1), bench.receiver(10)
    bench.put(0, group=b"g")
    bench.go()
    assert got(one) == [0]
    bench.put(1, group=b"g")
    bench.put(2)
    bench.go()
    assert got(two) == [2], "the group's next message waits for its own receiver"
    one.limit = 2
    bench.go()
    assert got(one) == [0, 1]
    bench.put(3, group=b"g")
    bench.go()
    bench.dispatch.remove(one)
    bench.go()
    assert got(two) == [2, 3], "who is gone owns no group"


def test_what_cannot_be_delivered_here_goes_elsewhere() -> None:
    bench = Bench()
    one = bench.receiver(10)
    bench.put(0)
    bench.go()
    bench.dispatch.exclude(one, 0)
    bench.dispatch.release(bench.queue, 0)
    bench.go()
    bench.dispatch.read_done([(0, b"x")])
    bench.go()
    assert got(one) == [0]
    two = bench.receiver(10)
    bench.go()
    assert got(two) == [0]


def test_who_browses_sees_all_and_holds_nothing() -> None:
    bench = Bench()
    bench.put(0, 1, 2)
    browser = bench.receiver(2, ReceiverMode.COPY)
    bench.go()
    assert got(browser) == [0, 1]
    assert not bench.dispatch.holders
    browser.limit = 5
    bench.go()
    assert got(browser) == [0, 1, 2]


def test_a_drain_is_answered_when_nothing_more_is_there() -> None:
    bench = Bench()
    bench.put(0, at_hand=False)
    one = bench.receiver(10)
    one.drain = 1
    bench.go()
    port = one.port
    assert isinstance(port, Port)
    assert (bench.reads, port.drains) == ([0], []), "it may come from the disk"
    bench.dispatch.read_done([(0, b"x")])
    bench.go()
    assert (got(one), port.drains) == ([0], [1])


def test_a_new_leader_leaves_with_a_receiver_what_it_holds() -> None:
    bench = Bench()
    bench.put(0, 1)
    holder = QueueReceiver(Port(), ReceiverMode.MOVE, None)
    holder.limit = 10
    bench.dispatch.add(holder, bench.queue, [0, 7])
    bench.go()
    assert holder.held == {0, 1}
    assert got(holder) == [1]
    other = QueueReceiver(Port(), ReceiverMode.MOVE, None)
    bench.dispatch.add(other, bench.queue, [0])
    assert not other.held, "what another holds is not its own"


def test_what_is_gone_is_given_to_nobody() -> None:
    bench = Bench()
    bench.put(0, 1)
    bench.queue.close(0)
    bench.dispatch.shrank([0])
    one = bench.receiver(10)
    bench.go()
    assert got(one) == [1]
