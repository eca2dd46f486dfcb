"""The streams of a replica: fed at apply, on a lane of their own, durable before the log goes.

The machine decides what is appended, the store plans the files; this is the clock between them.
One plan is out at a time, so that all that waits meanwhile becomes the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from clustor.raft.types import ReplicaId
from clustor.replica.disk_queue import DiskQueue
from clustor.replica.machine import StateMachine, StreamMachine
from clustor.streams.changes import StreamAppend, StreamChange, StreamRemove
from clustor.streams.plans import StreamPlan, StreamReceipt
from clustor.streams.quorum import Majority, PolicyRegistry
from clustor.streams.standing import StreamQuorums
from clustor.streams.store import StreamStore
from clustor.streams.view import StreamView, take_view

_BY_COMMIT: Final = Majority.__name__


class ReplicaStreams:
    """Feeds the store, and says when its files are durable through an entry."""

    def __init__(
        self, store: StreamStore, policies: PolicyRegistry, on_damage: Callable[[str], None]
    ) -> None:
        self.store = store
        self.on_damage = on_damage
        """To be told what makes these files useless: the replica stops, and peers have them."""
        self._quorums = StreamQuorums(policies)
        self.disk = DiskQueue()
        """The plans of the streams: their own tokens, their own order."""
        self.news: set[int] = set()
        """The partitions to which something happened since this was last emptied."""
        self._goal = 0  # checkpoints go on until the files are durable through this entry
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._checkpoint_due_ms: int | None = None
        self._errands: deque[Callable[[], None]] = deque()

    # Inputs.

    def feed(self, raft_index: int, changes: Iterable[StreamChange]) -> None:
        """Take what the machine decided when it applied an entry."""
        for change in changes:
            self.store.take(raft_index, change)
            self.news.add(change.partition)
            if type(change) is StreamAppend:
                files = self.store.partitions.get(change.partition)
                if files is not None and files.definition.quorum != _BY_COMMIT:
                    self._quorums.taken(raft_index, change)
            elif type(change) is StreamRemove:
                self._quorums.forget(change.partition)
        self.store.applied(raft_index)

    def tick(self, now_ms: int) -> None:
        """Make durable what has waited long enough, however little it is."""
        store = self.store
        if not store.is_dirty:
            self._checkpoint_due_ms = None
        elif self._checkpoint_due_ms is None:
            self._checkpoint_due_ms = now_ms + store.config.checkpoint_ms
        elif now_ms >= self._checkpoint_due_ms:
            self._checkpoint_due_ms = None
            self.want_durable(store.applied_index)

    def installed(self, machine: StateMachine, raft_index: int) -> None:
        """Let go of the partitions that a snapshot's state has no more; it is in force now."""
        assert isinstance(machine, StreamMachine)
        self.news.update(self.store.reconcile(machine.stream_extents(), raft_index))

    def emitted(self, raft_index: int) -> None:
        """Take in that a start begins at this entry or a later one from now on."""
        self.store.forget_removed(raft_index)

    @property
    def overdue_bytes(self) -> int:
        """What waits in memory beyond a flush under way and the one that fills meanwhile."""
        return max(0, self.store.tail_bytes - 2 * self.store.config.flush_bytes)

    # Durability.

    def want_durable(self, raft_index: int) -> None:
        """Make the files durable through an entry that was applied, soon."""
        self._goal = max(self._goal, raft_index)

    def when_durable(self, raft_index: int, then: Callable[[], None]) -> None:
        """Call `then` once the files are durable through an applied entry: now, or soon."""
        assert raft_index <= self.store.applied_index, "only what was applied becomes durable"
        if self.store.durable_raft_index >= raft_index:
            then()
            return
        self.want_durable(raft_index)
        self._waiting.append((raft_index, then))

    @property
    def has_work(self) -> bool:
        """Whether `advance` would begin a plan, or there is something to be told."""
        if self.news or self.disk.fresh:
            return True
        store = self.store
        return not self.disk.outstanding and (
            bool(self._errands)
            or store.durable_raft_index < self._goal
            or store.tail_bytes >= store.config.flush_bytes
            or store.uncovered_bytes >= store.config.checkpoint_bytes
        )

    def advance(self) -> None:
        """Begin the plan that is due, if any, and no other is out."""
        store = self.store
        if self.disk.outstanding:
            return
        if self._errands:
            self._errands.popleft()()
            if self.disk.outstanding:
                return
        config = store.config
        full = store.tail_bytes >= config.flush_bytes
        many = full and store.dirty_partitions > config.checkpoint_partitions
        if many or store.uncovered_bytes >= config.checkpoint_bytes:
            self.want_durable(store.applied_index)
            store.uncovered_bytes = 0
        if store.durable_raft_index < self._goal or store.pins.has_due:
            self.submit(store.plan_checkpoint(config.checkpoint_partitions))
        elif full:
            self.submit(store.plan_flush())

    def when_idle(self, errand: Callable[[], None]) -> None:
        """Run something that plans, soon and once: when no plan is out."""
        self._errands.append(errand)

    def submit(self, plan: StreamPlan) -> None:
        """Let a plan of the store be carried out."""
        self.disk.submit(plan.steps, partial(self._stored, plan.receipt))

    def _stored(self, receipt: StreamReceipt) -> None:
        self.store.stored(receipt)
        durable = self.store.durable_raft_index
        ready = [then for index, then in self._waiting if index <= durable]
        self._waiting = [each for each in self._waiting if each[0] > durable]
        for then in ready:
            then()

    def fail(self, reason: str) -> None:
        """Plan nothing any more, and conclude nothing: the replica has stopped."""
        self.store.fence(reason)
        self.disk.abandon()
        self._waiting.clear()
        self._errands.clear()

    # Reading.

    def view(
        self,
        partition: int,
        from_index: int,
        bytes_max: int | None,
        durable: Callable[[], Mapping[ReplicaId, int]],
    ) -> StreamView:
        """Take a view for a reader in any thread. Raises UnknownStream, StreamOutOfRange.

        `durable` says how far each member's log is, where a policy needs to know.
        """
        files = self.store.files(partition)
        readable = None
        if files.definition.quorum != _BY_COMMIT:
            readable = self._quorums.readable_next(files, durable())
        view = take_view(self.store, partition, from_index, bytes_max, readable)
        view.check(from_index)
        return view

    def whole_view(self, partition: int) -> StreamView:
        """Take a view of all that there is. Raises UnknownStream."""
        return take_view(self.store, partition)

    def pin(self, view: StreamView) -> int:
        """Keep the files of a view until `unpin`."""
        return self.store.pins.pin(frozenset(at.dek_epoch for at in view.segments))

    def unpin(self, number: int) -> None:
        self.store.pins.unpin(number)

    def take_news(self) -> set[int]:
        news, self.news = self.news, set()
        return news
