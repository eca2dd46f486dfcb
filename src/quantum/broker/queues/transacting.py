"""Transactions over several partitions: prepared in each, decided by one, ended by the channels."""

from __future__ import annotations

from heapq import heappush

from msgspec.structs import replace

from clustor.streams.changes import StreamAppend
from quantum.broker.queues.commands import (
    DecideTransaction,
    Enqueue,
    EnqueueReply,
    LaneCommand,
    NewMessage,
    PrepareTransaction,
    QueueRefusal,
    Settlement,
    SettlementKind,
)
from quantum.broker.queues.effects import QueueGrew, QueueShrank
from quantum.broker.queues.prepared import (
    DECIDED_MS_MAX,
    PREPARED_MAX,
    DecisionAsked,
    PartDecided,
    PreparedPart,
    decode_queue_item,
    encode_queue_item,
)
from quantum.broker.queues.queue import Queue, QueueEntry
from quantum.broker.queues.queue_pages import PAGE_PREPARED, TRANSACTIONS_DUE
from quantum.broker.queues.records import join_messages
from quantum.broker.queues.section import QueueSection
from quantum.broker.queues.settling import plan_settlements


class TransactingSection(QueueSection):
    """All queues of one partition, and its parts of transactions that other partitions share."""

    def _carry_out(self, command: LaneCommand) -> EnqueueReply:
        match command:
            case Enqueue():
                return super()._carry_out(command)
            case PrepareTransaction():
                return EnqueueReply(self._prepare(command))
            case DecideTransaction():
                return EnqueueReply(self._decide(command))

    # A part is promised.

    def _prepare(self, command: PrepareTransaction) -> QueueRefusal:
        refusal = self._refuse_part(command)
        if refusal:
            return refusal
        part = PreparedPart(
            command.coordinator, self._world.now_ms + DECIDED_MS_MAX, command.others, [], []
        )
        for name, messages in command.batches:
            queue = self.queues[name]
            part.staged.append((queue.number, self._stage(queue, messages)))
        for name, _, settlements in command.settles:
            queue = self.queues[name]
            queue.locked.update(each.number for each in settlements)
            part.settles.append((queue.number, settlements))
        self._prepared[command.transaction] = part
        self._note_part(command.transaction, part)
        return QueueRefusal.NONE

    def _refuse_part(self, command: PrepareTransaction) -> QueueRefusal:
        world = self._world
        partitions = [command.coordinator, *command.others]
        if any(each >= world.first_prg_count for each in partitions):
            return QueueRefusal.NOT_PLACED_HERE
        if command.transaction in self._prepared:
            return QueueRefusal.IN_USE
        if len(self._prepared) >= PREPARED_MAX:
            return QueueRefusal.TOO_MANY
        if any(world.is_channel_full(each) for each in partitions):
            return QueueRefusal.BUSY
        settles = [(name, said) for name, _, said in command.settles]
        return self._refuse_whole(command.batches, settles) or self._refuse_held(command)

    def _refuse_held(self, command: PrepareTransaction) -> QueueRefusal:
        """Fence a durable receiver whose messages went back when its link came back."""
        for name, holder, settlements in command.settles:
            for each in settlements:
                entry = self.queues[name].find(each.number)
                if entry is None or entry.holder != holder:
                    return QueueRefusal.FENCED
        return QueueRefusal.NONE

    def _stage(self, queue: Queue, messages: list[NewMessage]) -> list[QueueEntry]:
        """Let the bodies stand in the queue's file, where nobody is given them yet."""
        world, first = self._world, queue.next
        if not messages:
            return []
        entries = [self._entry(queue, first + n, each) for n, each in enumerate(messages)]
        batch = join_messages(each.payload for each in messages)
        world.note_stream(StreamAppend(queue.file_id, first, len(messages), world.now_ms, batch))
        queue.next += len(messages)
        for entry in entries:
            queue.stage(entry)
        self._head_changed(queue)
        return entries

    def _note_part(self, transaction: bytes, part: PreparedPart) -> None:
        heappush(self._due, (part.due_ms, TRANSACTIONS_DUE, 0))
        self._world.page_changed(PAGE_PREPARED + transaction)

    # It is decided.

    def _decide(self, command: DecideTransaction) -> QueueRefusal:
        part = self._prepared.get(command.transaction)
        if part is None or part.coordinator != self._world.prg:
            return QueueRefusal.NO_TRANSACTION
        self._decided(command.transaction, part, commit=command.commit)
        return QueueRefusal.NONE

    def _decided(self, transaction: bytes, part: PreparedPart, *, commit: bool) -> None:
        self._end_part(transaction, part, commit=commit)
        for other in part.others:
            self._send(other, PartDecided(transaction, commit))

    def _send(self, prg: int, item: PartDecided | DecisionAsked) -> None:
        self._world.send(prg, encode_queue_item(item))

    def receive(self, origin: int, data: bytes) -> None:
        """Hear of the end of a transaction, or a question about one."""
        item = decode_queue_item(data)
        if item is None:
            return
        part = self._prepared.get(item.transaction)
        if isinstance(item, PartDecided):
            if part is not None and part.coordinator == origin:
                self._end_part(item.transaction, part, commit=item.commit)
        elif part is None:
            self._send(origin, PartDecided(item.transaction, commit=False))

    def _end_part(self, transaction: bytes, part: PreparedPart, *, commit: bool) -> None:
        del self._prepared[transaction]
        self._world.page_changed(PAGE_PREPARED + transaction)
        for number, entries in part.staged:
            queue = self._by_number.get(number)
            if queue is not None:  # else it was deleted, with all that it held
                self._show(queue, entries, commit=commit)
        for number, settlements in part.settles:
            queue = self._by_number.get(number)
            if queue is not None:
                self._unlock(queue, settlements, commit=commit)

    def _show(self, queue: Queue, entries: list[QueueEntry], *, commit: bool) -> None:
        """Let staged messages be messages of their queue, or nothing."""
        shown = []
        for each in entries:
            queue.unstage(each.number)
            if commit:
                self._put(queue, replace(each, enqueued_ms=self._world.now_ms))
                self._block_changed(queue, each.number)
                shown.append(each.number)
        if shown:
            self._world.emit(QueueGrew(queue.name, shown, []))
        else:
            self._trim(queue)

    def _unlock(self, queue: Queue, settlements: list[Settlement], *, commit: bool) -> None:
        """Let what was settled count, or let the messages be given again."""
        numbers = {each.number for each in settlements}
        queue.locked -= numbers
        said = settlements
        if not commit:
            said = [Settlement(each, SettlementKind.RELEASED) for each in sorted(numbers)]
        self._settle(queue, plan_settlements(queue, said))
        open_again = [entry for entry in map(queue.find, sorted(numbers)) if entry is not None]
        for entry in open_again:
            if entry.expires_ms:
                heappush(self._due, (entry.expires_ms, queue.number, entry.number))
        self._tell_open(queue, open_again)

    def _tell_open(self, queue: Queue, entries: list[QueueEntry]) -> None:
        """Let the leader give what is open again, each to the receivers that it is for."""
        live = [each.number for each in entries if not each.dead]
        dead = [each.number for each in entries if each.dead]
        if live:
            self._world.emit(QueueGrew(queue.name, live, []))
        if dead:
            self._world.emit(QueueShrank(queue.name, dead, dead))

    # Time.

    def elapse(self) -> None:
        """Roll back what is not decided in time; ask about what others decide."""
        super().elapse()
        now_ms = self._world.now_ms
        for transaction, part in sorted(self._prepared.items()):
            if part.due_ms > now_ms:
                continue
            if part.coordinator == self._world.prg:
                self._decided(transaction, part, commit=False)
            else:
                part.due_ms = now_ms + DECIDED_MS_MAX
                self._note_part(transaction, part)
                self._send(part.coordinator, DecisionAsked(transaction))
