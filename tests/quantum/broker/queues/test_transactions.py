"""Transactions over partitions: whole or absent, whatever comes late, twice, or not at all.

Each partition is a desk of four replicas, two of which know only snapshots and deltas: what is
prepared is in both.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from quantum.broker import ChannelAcked, ChannelItems
from quantum.broker.items import SectionItem, encode_item
from quantum.broker.queues import (
    AcquireMessages,
    DecideTransaction,
    DeleteQueue,
    Enqueue,
    EnqueueReply,
    NewMessage,
    OpenTerminus,
    PrepareTransaction,
    PurgeQueue,
    QueueGrew,
    QueueRefusal,
    QueueShrank,
    ReviveMessages,
    Settlement,
    SettlementKind,
)
from quantum.broker.queues.prepared import DECIDED_MS_MAX, PREPARED_MAX
from quantum.broker.queues.transacting import TransactingSection
from tests.quantum.broker.queues.queue_desk import LANE, QueueDesk

ACCEPTED, REJECTED, RELEASED = (
    SettlementKind.ACCEPTED,
    SettlementKind.REJECTED,
    SettlementKind.RELEASED,
)
LATE_SECONDS = DECIDED_MS_MAX / 1000 + 1


def partition_of(key: bytes, count: int) -> int:
    """Queues end in the number of their partition."""
    return key[-1] % count


class Ring:
    """Three partitions and what is between them; `said` counts what each channel has brought."""

    def __init__(self, count: int = 3) -> None:
        self.desks = [
            QueueDesk(prg=n, prg_count=count, topic_partition=partition_of) for n in range(count)
        ]
        self.names = [b"q%d" % n for n in range(count)]
        for desk, name in zip(self.desks, self.names, strict=True):
            assert not desk.define(name).refusal

    def lane(self, prg: int, command: Enqueue | PrepareTransaction | DecideTransaction) -> int:
        desk = self.desks[prg]
        desk.sequence += 1
        command.sequence = desk.sequence
        return msgspec.msgpack.decode(desk.log(command), type=EnqueueReply).refusal

    def prepare(
        self,
        prg: int,
        transaction: bytes,
        *bodies: bytes,
        coordinator: int = 0,
        settles: list[Settlement] | None = None,
        holder: bytes = b"",
    ) -> int:
        others = [n for n in range(len(self.desks)) if n != coordinator]
        name = self.names[prg]
        batches = [(name, [NewMessage(each) for each in bodies])] if bodies else []
        said = [(name, holder, settles)] if settles else []
        if prg != coordinator:
            others = []
        return self.lane(
            prg, PrepareTransaction(LANE, 0, transaction, coordinator, others, batches, said)
        )

    def decide(self, transaction: bytes, *, commit: bool, coordinator: int = 0) -> int:
        return self.lane(coordinator, DecideTransaction(LANE, 0, transaction, commit))

    def pass_on(self, origin: int, target: int, *, acked: bool = True) -> int:
        """Bring what one has for another; not acked: it will come again."""
        desk, outbox = self.desks[origin], self.desks[origin].leader.state.channels.to(target)
        items = list(outbox.items)
        if not items:
            return 0
        first = outbox.acked_through + 1
        receiver = self.desks[target]
        before = len(receiver.appended)
        places = list(range(first, first + len(items)))
        assert all(isinstance(each, SectionItem) for each in items)
        receiver.do(
            ChannelItems(receiver.now_ms, origin, places, [encode_item(each) for each in items])
        )
        receiver._file(before)
        if acked:
            desk.do(ChannelAcked(target, outbox.last))
        return len(items)

    def exchange(self) -> None:
        """Bring everything everywhere."""
        count = len(self.desks)
        while any(
            self.pass_on(origin, target)
            for origin in range(count)
            for target in range(count)
            if origin != target
        ):
            pass

    def live(self) -> list[list[bytes]]:
        return [desk.live(name) for desk, name in zip(self.desks, self.names, strict=True)]

    def is_quiet(self) -> bool:
        queues = [desk.queue(name) for desk, name in zip(self.desks, self.names, strict=True)]
        return not any(each.staged or each.locked for each in queues)


def test_messages_are_seen_nowhere_before_and_everywhere_after_the_decision() -> None:
    ring = Ring()
    for prg in range(3):
        assert ring.prepare(prg, b"t", b"m%d" % prg) == QueueRefusal.NONE
        assert not any(isinstance(each, QueueGrew) for each in ring.desks[prg].effects)
    assert ring.live() == [[], [], []]
    assert ring.decide(b"t", commit=True) == QueueRefusal.NONE
    assert ring.desks[0].effects == [QueueGrew(b"q0", [0], [])]
    ring.exchange()
    assert ring.live() == [[b"m0"], [b"m1"], [b"m2"]]
    assert ring.is_quiet()


def test_a_rollback_leaves_nothing_and_lets_the_files_go() -> None:
    ring = Ring()
    for prg in range(3):
        ring.prepare(prg, b"t", b"m%d" % prg)
    ring.decide(b"t", commit=False)
    ring.exchange()
    assert ring.live() == [[], [], []]
    for desk, name in zip(ring.desks, ring.names, strict=True):
        assert (desk.queue(name).bytes, desk.section.totals.messages) == (0, 0)
        assert desk.queue(name).start == desk.queue(name).next == 1
    assert ring.decide(b"t", commit=True) == QueueRefusal.NO_TRANSACTION


def test_what_a_transaction_settles_hears_no_other_word() -> None:
    ring = Ring()
    desk = ring.desks[1]
    desk.enqueue(b"a", b"b", b"c", name=b"q1")
    desk.settle(REJECTED, 2, name=b"q1")
    ring.prepare(0, b"t", b"m")
    said = [Settlement(0, ACCEPTED), Settlement(1, REJECTED), Settlement(2, ACCEPTED)]
    assert ring.prepare(1, b"t", settles=said) == QueueRefusal.NONE
    assert desk.settle(ACCEPTED, 0, 1, 2, name=b"q1") == 0
    assert desk.say(PurgeQueue(b"q1")).done == 0
    assert desk.say(PurgeQueue(b"q1", dead=True)).done == 0
    assert desk.say(ReviveMessages(b"q1", [2])).done == 0
    # Another transaction cannot have it, in one partition or in several.
    again = [Settlement(0, ACCEPTED)]
    assert ring.prepare(1, b"u", settles=again) == QueueRefusal.IN_USE
    assert (
        ring.lane(1, Enqueue(LANE, 0, [], [(b"q1", again)], is_whole=True)) == QueueRefusal.IN_USE
    )
    ring.decide(b"t", commit=True)
    ring.exchange()
    assert desk.live(b"q1") == []
    assert desk.dead(b"q1") == [(b"b", b"rejected")]
    assert ring.is_quiet()


def test_a_rollback_lets_messages_be_given_again() -> None:
    ring = Ring()
    desk = ring.desks[1]
    desk.enqueue(b"a", b"b", name=b"q1")
    desk.settle(REJECTED, 1, name=b"q1")
    ring.prepare(0, b"t", b"m")
    ring.prepare(1, b"t", settles=[Settlement(0, ACCEPTED), Settlement(1, ACCEPTED)])
    ring.decide(b"t", commit=False)
    ring.pass_on(0, 1)
    assert desk.effects == [QueueGrew(b"q1", [0], []), QueueShrank(b"q1", [1], [1])]
    assert desk.settle(ACCEPTED, 0, 1, name=b"q1") == 2


def test_a_transaction_that_nobody_decides_ends_by_the_logs_clock() -> None:
    ring = Ring()
    for prg in range(3):
        ring.prepare(prg, b"t", b"m%d" % prg)
    for desk in ring.desks:
        desk.elapse(LATE_SECONDS - 2)
    ring.exchange()
    assert not ring.is_quiet()
    ring.desks[0].elapse(2)
    ring.exchange()
    assert ring.is_quiet()
    assert ring.live() == [[], [], []]
    # Whoever comes too late is told so.
    assert ring.decide(b"t", commit=True) == QueueRefusal.NO_TRANSACTION


def test_a_part_that_comes_behind_the_end_asks_and_is_rolled_back() -> None:
    ring = Ring()
    ring.prepare(0, b"t", b"m")
    ring.decide(b"t", commit=False)
    ring.exchange()
    assert ring.prepare(2, b"t", b"late") == QueueRefusal.NONE
    ring.desks[2].elapse(LATE_SECONDS)
    ring.desks[2].elapse(1)
    assert ring.pass_on(2, 0) == 1, "it asks once, and again only after as long"
    ring.exchange()
    assert ring.is_quiet()
    assert ring.live() == [[], [], []]


def test_a_question_that_meets_the_word_to_commit_changes_nothing() -> None:
    """The answer to it is 'unknown', and comes behind the word on the same channel."""
    ring = Ring(2)
    ring.prepare(0, b"t", b"a")
    ring.prepare(1, b"t", b"b")
    ring.desks[1].elapse(LATE_SECONDS)
    ring.decide(b"t", commit=True)
    ring.pass_on(1, 0)
    ring.exchange()
    assert ring.live() == [[b"a"], [b"b"]]


def test_an_open_transaction_is_not_rolled_back_by_a_question() -> None:
    ring = Ring(2)
    ring.prepare(0, b"t", b"a")
    ring.prepare(1, b"t", b"b")
    ring.desks[1].elapse(LATE_SECONDS)
    ring.exchange()
    ring.decide(b"t", commit=True)
    ring.exchange()
    assert ring.live() == [[b"a"], [b"b"]]


def test_only_its_coordinator_ends_a_transaction() -> None:
    ring = Ring()
    ring.prepare(0, b"t", b"a")
    ring.prepare(1, b"t", b"b")
    ring.prepare(2, b"t", b"c")
    assert ring.decide(b"t", commit=True, coordinator=1) == QueueRefusal.NO_TRANSACTION
    ring.exchange()
    assert ring.live() == [[], [], []]


def test_staged_messages_have_their_room() -> None:
    ring = Ring()
    desk = ring.desks[1]
    desk.define(b"q1", messages_max=2)
    ring.prepare(0, b"t", b"m")
    assert ring.prepare(1, b"t", b"a", b"b") == QueueRefusal.NONE
    assert desk.enqueue(b"c", name=b"q1").refused == [(0, 0, QueueRefusal.FULL)]
    assert ring.prepare(1, b"u", b"c") == QueueRefusal.FULL
    assert desk.say(DeleteQueue(b"q1", if_empty=True)).refusal == QueueRefusal.IN_USE
    ring.decide(b"t", commit=True)
    ring.exchange()
    assert desk.live(b"q1") == [b"a", b"b"]


def test_a_queue_that_is_deleted_takes_its_part_along() -> None:
    ring = Ring()
    desk = ring.desks[1]
    desk.enqueue(b"x", name=b"q1")
    ring.prepare(0, b"t", b"m")
    ring.prepare(1, b"t", b"a", settles=[Settlement(0, ACCEPTED)])
    desk.say(DeleteQueue(b"q1"))
    desk.define(b"q1")
    desk.enqueue(b"new", name=b"q1")
    ring.decide(b"t", commit=True)
    ring.exchange()
    assert ring.live() == [[b"m"], [b"new"], []]
    assert desk.section.totals.messages == 1


def test_what_expires_meanwhile_waits_for_the_decision() -> None:
    ring = Ring()
    desk = ring.desks[1]
    desk.enqueue(NewMessage(b"old", ttl_ms=5_000), name=b"q1")
    ring.prepare(0, b"t", b"m")
    ring.prepare(1, b"t", settles=[Settlement(0, ACCEPTED)])
    desk.elapse(10)
    assert desk.live(b"q1") == [b"old"]
    ring.decide(b"t", commit=False)
    ring.exchange()
    desk.elapse(1)
    assert desk.live(b"q1") == []


def test_a_durable_receiver_that_came_back_elsewhere_is_fenced() -> None:
    ring = Ring()
    desk = ring.desks[1]
    desk.enqueue(b"a", b"b", name=b"q1")
    desk.say(OpenTerminus(b"link", b"q1", b"one"))
    desk.say(AcquireMessages(b"link", b"q1", [0, 1]))
    ring.prepare(0, b"t", b"m")
    assert ring.prepare(1, b"t", settles=[Settlement(0, ACCEPTED)]) == QueueRefusal.FENCED
    held = [Settlement(0, ACCEPTED)]
    assert ring.prepare(1, b"t", settles=held, holder=b"link") == QueueRefusal.NONE
    desk.say(OpenTerminus(b"link", b"q1", b"two"))  # gives the other one back
    assert [each.failures for each in desk.queue(b"q1").live.values()] == [0, 1]
    held = [Settlement(1, ACCEPTED)]
    assert ring.prepare(1, b"u", settles=held, holder=b"link") == QueueRefusal.FENCED
    # What is locked nobody else can hold; when it is rolled back nobody does.
    assert desk.say(AcquireMessages(b"link", b"q1", [0])).refusal == QueueRefusal.IN_USE
    ring.decide(b"t", commit=False)
    ring.exchange()
    assert desk.queue(b"q1").held_by(b"link") == []


def test_a_partition_holds_so_many_and_knows_its_neighbours() -> None:
    ring = Ring()
    assert ring.prepare(0, b"t", b"m", coordinator=3) == QueueRefusal.NOT_PLACED_HERE
    section = ring.desks[0].section
    assert isinstance(section, TransactingSection)
    for number in range(PREPARED_MAX):
        section._prepared[b"%d" % number] = msgspec.UNSET  # type: ignore[assignment]
    assert (
        section._refuse_part(PrepareTransaction(LANE, 1, b"t", 0, [], [])) == QueueRefusal.TOO_MANY
    )
    assert section._refuse_part(PrepareTransaction(LANE, 1, b"7", 0, [], [])) == QueueRefusal.IN_USE


@pytest.mark.parametrize("seed", range(30))
def test_whole_or_absent_in_any_order(seed: int) -> None:
    """Parts, words, repeats, clocks and questions in a drawn order; then everything arrives."""
    rng = random.Random(seed)
    ring = Ring()
    for prg in range(3):
        ring.desks[prg].enqueue(*(b"old-%d" % n for n in range(8)), name=b"q%d" % prg)
    decided: dict[bytes, bool] = {}
    settled: dict[bytes, int] = {}
    open_parts: dict[bytes, tuple[int, list[int]]] = {}
    for number in range(8):
        open_parts[b"t%d" % number] = (rng.randrange(3), [])
    for _ in range(60):
        transaction = rng.choice(sorted(open_parts))
        coordinator, done = open_parts[transaction]
        match rng.randrange(8):
            case 0 | 1 | 2 if len(done) < 3 and transaction not in decided:
                rest = [n for n in range(3) if n not in done]
                prg = coordinator if not done else rng.choice(rest)
                number = settled.setdefault(transaction, rng.randrange(8))
                refusal = ring.prepare(
                    prg,
                    transaction,
                    transaction,
                    coordinator=coordinator,
                    settles=[Settlement(number, ACCEPTED)],
                )
                if refusal:
                    assert refusal in {QueueRefusal.IN_USE, QueueRefusal.NO_QUEUE}, seed
                    decided[transaction] = False
                    ring.decide(transaction, commit=False, coordinator=coordinator)
                else:
                    done.append(prg)
            case 3 | 4 if len(done) == 3 and transaction not in decided:
                refusal = ring.decide(transaction, commit=True, coordinator=coordinator)
                decided[transaction] = refusal == QueueRefusal.NONE
            case 5:
                ring.desks[rng.randrange(3)].elapse(rng.choice((1, 20, 61)))
            case 6 | 7:
                origin, target = rng.sample(range(3), 2)
                ring.pass_on(origin, target, acked=rng.random() < 0.5)
            case _:
                pass
    for _ in range(3):
        ring.exchange()
        for desk in ring.desks:
            desk.elapse(LATE_SECONDS)
    ring.exchange()
    assert ring.is_quiet(), seed
    committed = {each for each, counts in decided.items() if counts}
    for prg, bodies in enumerate(ring.live()):
        assert {each for each in bodies if each.startswith(b"t")} == committed, (seed, prg)
        gone = {settled[each] for each in committed}
        kept = {b"old-%d" % n for n in range(8) if n not in gone}
        assert {each for each in bodies if each.startswith(b"old")} == kept, (seed, prg)
        assert len(bodies) == len(set(bodies)), seed
