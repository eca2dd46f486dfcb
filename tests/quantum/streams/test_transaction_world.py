"""Coordinator and partitions together: transactions are whole or absent, and none hangs.

Clients retry, lose answers, are replaced while they still run, and fall silent; what goes between
the logs arrives late, each channel in its own order. The checker looks at what a reader of
committed records would see, and knows the rules of the protocol, not the code.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any

import pytest

from quantum.broker.streams import (
    AddToTransaction,
    AdmitTransaction,
    AppendBatch,
    BatchAppended,
    EndArrived,
    EndInPartition,
    EndTransaction,
    ExpireTransactions,
    InitProducer,
    MarkerPlaced,
    ProducerGiven,
    StreamPartition,
    StreamRefusal,
    TransactionCoordinator,
)

PARTITIONS = [("t", nth) for nth in range(3)]
IDS = ["a", "b"]
TIMEOUT_MS = 60


class Client:
    """One instance of a transactional producer: retries what got no answer, as stock ones do."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.who: ProducerGiven | None = None
        self.sequences: dict[Any, int] = defaultdict(int)
        self.batches: list[tuple[Any, int, int]] = []  # partition, sequence, label
        self.pending: list[tuple[Any, AppendBatch, int]] = []
        self.label = -1
        self.dead = False
        self.bump = world.rng.random() < 0.5
        self.claim = (-1, -1)

    def step(self) -> None:
        rng = self.world.rng
        if self.who is None:
            self._init()
        elif self.pending and rng.random() < 0.7:
            self._send(self.pending[0])
        elif self.label < 0 or rng.random() < 0.5:
            self._produce()
        else:
            self._end()

    def _init(self) -> None:
        result = self.world.coordinate(
            InitProducer(self.world.now, self.name, TIMEOUT_MS, *self.claim)
        )
        if isinstance(result, ProducerGiven) and self.world.heard():
            self.world.check_unique(self, result)
            self.who = result
            self.sequences.clear()
            self.label = -1
            self.pending.clear()
        elif result in {StreamRefusal.FENCED, StreamRefusal.UNKNOWN_PRODUCER}:
            self.dead = True

    def _produce(self) -> None:
        assert self.who is not None
        rng = self.world.rng
        if self.label < 0:
            self.label = self.world.new_label()
        partition = rng.choice(PARTITIONS)
        count = rng.randint(1, 3)
        facts = (self.who.producer_id, self.who.epoch, self.sequences[partition])
        command = AppendBatch(self.world.now, count, *facts, transactional=True)
        self.sequences[partition] += count
        self.pending.append((partition, command, self.label))
        self._send(self.pending[-1])

    def _send(self, batch: tuple[Any, AppendBatch, int]) -> None:
        """Let the coordinator have the partition in, then append; a retry does the same again."""
        partition, command, label = batch
        assert self.who is not None
        add = AddToTransaction(
            self.world.now, self.name, command.producer_id, command.epoch, (partition,)
        )
        result = self.world.coordinate(add)
        if isinstance(result, StreamRefusal):
            self._refused(result)
            return
        if any(each[0] == partition for each in self.pending[: self.pending.index(batch)]):
            return  # in order, partition by partition
        appended = self.world.append(partition, command, label)
        if isinstance(appended, BatchAppended):
            if self.world.heard():
                self.pending.remove(batch)
        elif appended is not StreamRefusal.TRANSACTION_NOT_OPEN:
            self._refused(appended)

    def _end(self) -> None:
        assert self.who is not None
        rng = self.world.rng
        commit = not self.pending and rng.random() < 0.6
        end = EndTransaction(
            self.world.now, self.name, self.who.producer_id, self.who.epoch, commit, self.bump
        )
        label = self.label
        for _ in range(rng.randint(1, 3)):  # the answer is lost, and asked for again
            result = self.world.coordinate(end)
            if isinstance(result, ProducerGiven):
                self.world.decided(label, commit)
                if result != self.who:
                    self.sequences.clear()
                if not commit and not self.bump:
                    self.claim = (self.who.producer_id, self.who.epoch)
                    self.who = None  # what was refused or lost has left gaps: begin anew
                else:
                    self.who = result
                self.label = -1
                self.pending.clear()
                return
            if result is not StreamRefusal.TRANSACTION_ENDING:
                self._refused(result)
                return

    def _refused(self, refusal: Any) -> None:
        if refusal is StreamRefusal.TRANSACTION_ENDING:
            return
        if refusal in {StreamRefusal.FENCED, StreamRefusal.STALE_EPOCH}:
            if self.world.rng.random() < 0.5 and self.who is not None:
                self.claim = (self.who.producer_id, self.who.epoch)
                self.who = None
            else:
                self.dead = True
            return
        assert self.who is not None
        self.claim = (self.who.producer_id, self.who.epoch)
        self.who = None


class World:
    def __init__(self, seed: int) -> None:
        self.seed, self.rng, self.now = seed, random.Random(seed), 0
        self.coordinator = TransactionCoordinator(1)
        self.partitions = {each: StreamPartition() for each in PARTITIONS}
        self.logs: dict[Any, list[tuple[str, int, int, int]]] = defaultdict(list)
        self.channels: dict[Any, deque[Any]] = defaultdict(deque)
        self.back: deque[EndArrived] = deque()
        self.clients: list[Client] = []
        self.owners: dict[tuple[int, int], Client] = {}
        self.outcome: dict[int, bool] = {}
        self.labels = 0

    def new_label(self) -> int:
        self.labels += 1
        return self.labels

    def heard(self) -> bool:
        return self.rng.random() < 0.8

    def check_unique(self, client: Client, who: ProducerGiven) -> None:
        """An epoch belongs to one instance: two that act under it could not be told apart."""
        key = (who.producer_id, who.epoch)
        assert self.owners.setdefault(key, client) is client, (self.seed, key)

    def decided(self, label: int, commit: bool) -> None:
        if label >= 0:
            assert self.outcome.setdefault(label, commit) == commit, self.seed

    def coordinate(self, command: Any) -> Any:
        if self.rng.random() < 0.05:
            fresh = TransactionCoordinator(9)
            fresh.restore(self.coordinator.snapshot())
            self.coordinator = fresh
        result = self.coordinator.apply(command)
        words: tuple[Any, ...] = (*result.admissions, *result.markers)
        for each in words:
            self.channels[each.partition].append(each)
        return result.answer

    def append(self, partition: Any, command: AppendBatch, label: int) -> Any:
        result = self.partitions[partition].apply(command)
        if isinstance(result, BatchAppended) and not result.repeat:
            log = self.logs[partition]
            assert result.base_offset == len(log), self.seed
            log += [("data", command.producer_id, label, command.first_sequence)] * command.count
        return result

    def carry(self) -> None:
        """Let one word of one channel arrive; a marker's arrival goes back to the coordinator."""
        waiting = [each for each, queue in self.channels.items() if queue]
        if waiting and self.rng.random() < 0.7:
            partition = self.rng.choice(waiting)
            word = self.channels[partition].popleft()
            self._arrive(partition, word)
        elif self.back:
            self.coordinate(self.back.popleft())

    def _arrive(self, partition: Any, word: Any) -> None:
        if not hasattr(word, "commit"):
            self.partitions[partition].apply(
                AdmitTransaction(self.now, word.producer_id, word.epoch)
            )
            return
        end = EndInPartition(self.now, word.producer_id, word.epoch, word.commit)
        result = self.partitions[partition].apply(end)
        assert isinstance(result, MarkerPlaced), (self.seed, result)
        kind = "commit" if word.commit else "abort"
        self.logs[partition].append((kind, word.producer_id, -1, -1))
        arrived = (word.transactional_id, word.producer_id, word.epoch, partition)
        self.back.append(EndArrived(self.now, *arrived))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.rng.choice([0, 0, 1, 1, 5])
            if self.rng.random() < 0.02 or not self.clients:
                self.clients.append(Client(self, self.rng.choice(IDS)))  # the old one still runs
            living = [each for each in self.clients if not each.dead]
            if living and self.rng.random() < 0.6:
                self.rng.choice(living[-4:]).step()
            elif self.rng.random() < 0.05:
                self.coordinate(ExpireTransactions(self.now))
            else:
                self.carry()

    def settle(self) -> None:
        """Everybody falls silent: the log's clock alone must end what is open."""
        self.now += 10 * TIMEOUT_MS
        self.coordinate(ExpireTransactions(self.now))
        while self.back or any(self.channels.values()):
            self.carry()

    def check(self) -> None:
        """Read what a reader of committed records reads, and compare it with what was decided."""
        seen: dict[int, set[bool]] = defaultdict(set)
        for name, partition in self.partitions.items():
            assert partition.last_stable_offset == partition.end_offset, (self.seed, "it hangs")
            assert not partition.open_transactions()
            log = self.logs[name]
            assert partition.end_offset == len(log)
            hidden = {
                offset
                for aborted in partition.aborted_between(0, len(log))
                for offset in range(aborted.first_offset, aborted.last_offset + 1)
                if log[offset][1] == aborted.producer_id
            }
            labels_open: set[int] = set()
            for offset, (kind, producer, label, _) in enumerate(log):
                if kind == "data":
                    seen[label].add(offset not in hidden)
                    labels_open.add(label)
                    assert producer is not None
        for label, visible in seen.items():
            assert len(visible) == 1, (self.seed, label, "half a transaction is seen")
            if label in self.outcome:
                assert visible == {self.outcome[label]}, (self.seed, label)
            else:
                assert True  # its client never heard: either way is well, but whole


@pytest.mark.parametrize("seed", range(150))
def test_transactions_are_whole_or_absent_and_none_hangs(seed: int) -> None:
    world = World(seed)
    world.run(400)
    world.settle()
    world.check()


def test_the_world_has_enough_of_everything() -> None:
    """A world in which nothing commits, or nobody is fenced, would prove nothing."""
    commits = aborts = dead = 0
    for seed in range(30):
        world = World(seed)
        world.run(400)
        commits += sum(world.outcome.values())
        aborts += sum(not each for each in world.outcome.values())
        dead += sum(each.dead for each in world.clients)
    assert min(commits, aborts, dead) > 20, (commits, aborts, dead)
