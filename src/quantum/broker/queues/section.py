"""The queues of a partition as a section of its machine: commands in, effects and pages out."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

import msgspec

from clustor.streams.changes import (
    StreamAppend,
    StreamDefine,
    StreamRemove,
    StreamTrim,
)
from quantum.broker.queues.commands import (
    NAME_BYTES_MAX,
    QUEUE_FAMILY,
    AcquireMessages,
    CarryMessages,
    CloseTerminus,
    DecideTransaction,
    DefineQueue,
    DeleteQueue,
    Enqueue,
    EnqueueReply,
    LaneCommand,
    NewMessage,
    OpenTerminus,
    PrepareTransaction,
    PurgeQueue,
    QueueRefusal,
    QueueReply,
    ReviveMessages,
    Settlement,
    SettlementKind,
    SettleMessages,
    decode_queue_command,
    encode_queue_reply,
    place_key,
)
from quantum.broker.queues.effects import QueueEnded, QueueGrew, QueueShrank
from quantum.broker.queues.queue import BLOCK, TRIM_STEP, Queue, QueueEntry
from quantum.broker.queues.queue_pages import (
    PAGE_BLOCK,
    PAGE_LANE,
    PAGE_LAST,
    PAGE_TERMINUS,
    PLACE,
    TERMINI_DUE,
    QueuePages,
)
from quantum.broker.queues.records import join_messages
from quantum.broker.queues.settling import Change, plan_settlements
from quantum.broker.queues.termini import TERMINI_MAX, UNHEARD_MS_MAX, TerminusState
from quantum.broker.sections import SECTION_HEAD

QUEUES_MAX: Final = 16_384
"""Queues of a tenant in one partition."""
EXPIRED_MAX: Final = 10_000
"""So many messages expire with one look at the clock; the others stay due."""


class QueueSection(QueuePages):
    """All queues of one partition."""

    family = QUEUE_FAMILY

    # Commands.

    def apply(self, data: bytes) -> bytes:
        try:
            command = decode_queue_command(data[SECTION_HEAD.size :])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return b""
        if isinstance(command, Enqueue | PrepareTransaction | DecideTransaction):
            return self._take_turn(command)
        return encode_queue_reply(self._execute(command))

    def _execute(
        self,
        command: DefineQueue
        | DeleteQueue
        | SettleMessages
        | PurgeQueue
        | ReviveMessages
        | CarryMessages
        | OpenTerminus
        | CloseTerminus
        | AcquireMessages,
    ) -> QueueReply:
        match command:
            case DefineQueue():
                return self._define(command)
            case DeleteQueue():
                return self._delete(command)
            case SettleMessages():
                return QueueReply(done=sum(map(self._settle_batch, command.batches)))
            case PurgeQueue():
                return self._purge(command)
            case ReviveMessages():
                return self._revive(command)
            case CarryMessages():
                return self._carry(command)
            case OpenTerminus():
                return self._open_terminus(command)
            case CloseTerminus():
                return QueueReply(done=self._forget_terminus(command.link))
            case AcquireMessages():
                return self._acquire(command)

    def _define(self, command: DefineQueue) -> QueueReply:
        spec, world = command.spec, self._world
        if not 0 < len(spec.name) <= NAME_BYTES_MAX:
            return QueueReply(QueueRefusal.BAD_NAME)
        if world.place(place_key(spec.name), world.first_prg_count) != world.prg:
            return QueueReply(QueueRefusal.NOT_PLACED_HERE)
        known = self.queues.get(spec.name)
        if known is not None:
            if not command.keeps:
                known.spec = spec
                self._head_changed(known)
            return QueueReply(done=known.number)
        if len(self.queues) >= QUEUES_MAX:
            return QueueReply(QueueRefusal.TOO_MANY)
        self._last_number += 1
        world.page_changed(PAGE_LAST)
        queue = Queue(self._last_number, spec, world.now_ms, self.totals)
        self._add(queue)
        self._head_changed(queue)
        world.note_stream(StreamDefine(queue.file_id))
        return QueueReply(done=queue.number)

    def _add(self, queue: Queue) -> None:
        self.queues[queue.name] = self._by_number[queue.number] = queue

    def _delete(self, command: DeleteQueue) -> QueueReply:
        queue = self.queues.get(command.name)
        if queue is None:
            return QueueReply(QueueRefusal.NO_QUEUE)
        if command.if_empty and (queue.count or queue.dead):
            return QueueReply(QueueRefusal.IN_USE)
        for block in queue.blocks():
            self._world.page_changed(PAGE_BLOCK + PLACE.pack(queue.number, block))
        self._head_changed(queue)
        del self.queues[queue.name], self._by_number[queue.number]
        queue.close_all()
        self._world.note_stream(StreamRemove(queue.file_id))
        self._world.emit(QueueEnded(queue.name))
        return QueueReply(done=len(queue.live) + len(queue.dead))

    # Messages come.

    def _take_turn(self, command: LaneCommand) -> bytes:
        """Carry out the next command of a lane; one that was is answered as it was."""
        lanes, world = self._lanes, self._world
        known = lanes.repeated(command.lane, command.sequence)
        if known is not None:
            return known
        if not lanes.is_next(command.lane, command.sequence):
            return encode_queue_reply(EnqueueReply(QueueRefusal.GAP))
        reply = encode_queue_reply(self._carry_out(command))
        for gone in lanes.take(command.lane, command.sequence, world.now_ms, reply):
            world.page_changed(PAGE_LANE + gone)
        world.page_changed(PAGE_LANE + command.lane)
        return reply

    def _carry_out(self, command: LaneCommand) -> EnqueueReply:
        assert isinstance(command, Enqueue), "transactions are another class's"
        plans = [
            (name, plan_settlements(self.queues.get(name), each)) for name, each in command.settles
        ]
        if command.is_whole:
            refusal = self._refuse_whole(command.batches, command.settles)
            if refusal:
                return EnqueueReply(refusal)
        refused: list[tuple[int, int, QueueRefusal]] = []
        for number, (name, messages) in enumerate(command.batches):
            refused += [(number, *each) for each in self._append(name, messages)]
        for name, changes in plans:
            self._settle(self.queues.get(name), changes)
        return EnqueueReply(refused=refused)

    def _refuse_whole(
        self,
        batches: list[tuple[bytes, list[NewMessage]]],
        settles: list[tuple[bytes, list[Settlement]]],
    ) -> QueueRefusal:
        """Say why a transaction cannot be taken: a queue has no room, or a message is gone."""
        for name, messages in batches:
            queue = self.queues.get(name)
            if queue is None:
                return QueueRefusal.NO_QUEUE
            size = sum(len(each.payload) for each in messages)
            if (
                queue.count + len(messages) > queue.spec.messages_max
                or queue.bytes + size > queue.spec.bytes_max
            ):
                return QueueRefusal.FULL
        for name, settlements in settles:
            queue = self.queues.get(name)
            if queue is None or any(queue.find(each.number) is None for each in settlements):
                return QueueRefusal.NO_QUEUE
            if any(each.number in queue.locked for each in settlements):
                return QueueRefusal.IN_USE
        return QueueRefusal.NONE

    def _append(self, name: bytes, messages: list[NewMessage]) -> list[tuple[int, QueueRefusal]]:
        queue = self.queues.get(name)
        if queue is None:
            return [(place, QueueRefusal.NO_QUEUE) for place in range(len(messages))]
        room = queue.spec.messages_max - queue.count
        room_bytes = queue.spec.bytes_max - queue.bytes
        taken: list[bytes] = []
        refused: list[tuple[int, QueueRefusal]] = []
        for place, message in enumerate(messages):
            size = len(message.payload)
            if message.link and self._termini.is_fenced(message.link, message.epoch):
                refused.append((place, QueueRefusal.FENCED))
                continue
            if message.link and self._termini.is_taken(message.link, message.tag):
                continue  # it came before, and counts once
            if len(taken) >= room or size > room_bytes:
                refused.append((place, QueueRefusal.FULL))
                continue
            room_bytes -= size
            if message.link:
                self._termini.take(message.link, message.tag, self._world.now_ms)
                self._world.page_changed(PAGE_TERMINUS + message.link)
            self._put(queue, self._entry(queue, queue.next + len(taken), message))
            taken.append(message.payload)
        if taken:
            self._appended(queue, taken)
        return refused

    def _entry(self, queue: Queue, number: int, message: NewMessage) -> QueueEntry:
        now_ms = self._world.now_ms
        ttl_ms = message.ttl_ms or (0 if message.expires_ms else queue.spec.ttl_ms)
        ends = [each for each in (message.expires_ms, now_ms + ttl_ms if ttl_ms else 0) if each]
        expires_ms = min(ends, default=0)
        entry = QueueEntry(
            number, len(message.payload), now_ms, message.priority, expires_ms, message.group
        )
        entry.sender = message.sender
        return entry

    def _put(self, queue: Queue, entry: QueueEntry) -> None:
        queue.put(entry)
        if entry.expires_ms:
            heappush(self._due, (entry.expires_ms, queue.number, entry.number))

    def _appended(self, queue: Queue, payloads: list[bytes]) -> None:
        world, first = self._world, queue.next
        batch = join_messages(payloads)
        world.note_stream(StreamAppend(queue.file_id, first, len(payloads), world.now_ms, batch))
        queue.next += len(payloads)
        for block in range(first // BLOCK, (queue.next - 1) // BLOCK + 1):
            world.page_changed(PAGE_BLOCK + PLACE.pack(queue.number, block))
        self._head_changed(queue)
        world.emit(QueueGrew(queue.name, list(range(first, queue.next)), payloads))

    # Messages go.

    def _settle_batch(self, batch: tuple[bytes, list[Settlement]]) -> int:
        queue = self.queues.get(batch[0])
        return self._settle(queue, plan_settlements(queue, batch[1]))

    def _settle(self, queue: Queue | None, changes: list[Change]) -> int:
        if queue is None or not changes:
            return 0
        gone: list[int] = []
        died: list[int] = []
        for number, after in changes:
            entry = queue.find(number)
            if entry is None:
                continue  # said twice in one command
            if after is None:
                queue.close(number)
            else:
                queue.change(after)
            if after is None or after.dead != entry.dead:
                (gone if after is None else died).append(number)
            self._block_changed(queue, number)
        self._trim(queue)
        if gone or died:
            self._world.emit(QueueShrank(queue.name, gone + died, died))
        return len(changes)

    def _trim(self, queue: Queue) -> None:
        """Let the file begin later, in steps."""
        lowest = queue.lowest()
        is_empty = lowest == queue.next
        if lowest - queue.start >= TRIM_STEP or (is_empty and lowest > queue.start):
            queue.start = lowest
            self._head_changed(queue)
            self._world.note_stream(StreamTrim(queue.file_id, lowest))

    def _purge(self, command: PurgeQueue) -> QueueReply:
        queue = self.queues.get(command.name)
        if queue is None:
            return QueueReply(QueueRefusal.NO_QUEUE)
        numbers = sorted((queue.dead if command.dead else queue.live).keys() - queue.locked)
        return QueueReply(done=self._settle(queue, [(number, None) for number in numbers]))

    def _revive(self, command: ReviveMessages) -> QueueReply:
        queue = self.queues.get(command.name)
        if queue is None:
            return QueueReply(QueueRefusal.NO_QUEUE)
        wanted = command.numbers or sorted(queue.dead)[: command.count_max]
        free = queue.dead.keys() - queue.locked
        numbers = [each for each in dict.fromkeys(wanted) if each in free]
        for number in numbers:
            queue.change(
                msgspec.structs.replace(queue.dead[number], dead=b"", failures=0, expires_ms=0)
            )
            self._block_changed(queue, number)
        if numbers:
            queue.sort()
            self._world.emit(QueueGrew(queue.name, numbers, []))
        return QueueReply(done=len(numbers))

    def _carry(self, command: CarryMessages) -> QueueReply:
        """Append bodies anew, so that the file can begin behind their old places."""
        queue, world = self.queues.get(command.name), self._world
        if queue is None:
            return QueueReply(QueueRefusal.NO_QUEUE)
        first = queue.next
        payloads: list[bytes] = []
        for number, place, payload in command.bodies:
            entry = queue.find(number)
            if entry is not None and entry.at == place and len(payload) == entry.size:
                queue.carry(number, first + len(payloads))
                payloads.append(payload)
                self._block_changed(queue, number)
        if payloads:
            batch = join_messages(payloads)
            count = len(payloads)
            world.note_stream(StreamAppend(queue.file_id, first, count, world.now_ms, batch))
            queue.next += count
            queue.sort()
            self._head_changed(queue)
            self._trim(queue)
        return QueueReply(done=len(payloads))

    # Durable ends of links.

    def _open_terminus(self, command: OpenTerminus) -> QueueReply:
        link, world = command.link, self._world
        queue = self.queues.get(command.queue)
        if queue is None:
            return QueueReply(QueueRefusal.NO_QUEUE)
        termini = self._termini
        known = termini.termini.get(link)
        if known is not None and known.queue != command.queue:
            self._forget_terminus(link)
        tags = termini.taken(link, command.tags)
        if known is not None and known.epoch == command.epoch:
            return QueueReply(tags=tags)
        if not termini.termini:
            heappush(self._due, (world.now_ms + UNHEARD_MS_MAX, TERMINI_DUE, 0))
        state = TerminusState(command.queue, command.epoch, world.now_ms, list(tags))
        termini.put(link, state)
        world.page_changed(PAGE_TERMINUS + link)
        said = {each.number: each for each in command.settles}
        self._hand_back(
            queue,
            [
                said.get(each) or Settlement(each, SettlementKind.FAILED)
                for each in queue.held_by(link)
            ],
        )
        while len(termini.termini) > TERMINI_MAX:
            oldest = termini.oldest()
            assert oldest is not None
            self._forget_terminus(oldest[1])
        return QueueReply(tags=tags)

    def _forget_terminus(self, link: bytes) -> int:
        found = self._termini.forget(link)
        if found is None:
            return 0
        self._world.page_changed(PAGE_TERMINUS + link)
        queue = self.queues.get(found.queue)
        held = [] if queue is None else queue.held_by(link)
        if queue is not None:
            self._hand_back(queue, [Settlement(n, SettlementKind.RELEASED) for n in held])
        return len(held)

    def _hand_back(self, queue: Queue, said: list[Settlement]) -> None:
        """Settle what a durable receiver held; what is still a message may be given again."""
        self._settle(queue, plan_settlements(queue, said))
        free = [each.number for each in said if each.number in queue.live]
        if free:
            self._world.emit(QueueGrew(queue.name, free, []))

    def _acquire(self, command: AcquireMessages) -> QueueReply:
        queue = self.queues.get(command.name)
        if queue is None or command.link not in self._termini.termini:
            return QueueReply(QueueRefusal.FENCED)
        if not queue.locked.isdisjoint(command.numbers):
            return QueueReply(QueueRefusal.IN_USE)
        done = 0
        for number in command.numbers:
            entry = queue.find(number)
            if entry is not None and not entry.holder:
                queue.change(msgspec.structs.replace(entry, holder=command.link))
                self._block_changed(queue, number)
                done += 1
        return QueueReply(done=done)

    def _expire_termini(self, now_ms: int) -> None:
        while (oldest := self._termini.oldest()) is not None:
            due_ms = oldest[0] + UNHEARD_MS_MAX
            if due_ms > now_ms:
                heappush(self._due, (due_ms, TERMINI_DUE, 0))
                return
            self._forget_terminus(oldest[1])

    # Time.

    def elapse(self) -> None:
        now_ms = self._world.now_ms
        expired: dict[int, list[Change]] = {}
        for _ in range(EXPIRED_MAX):
            if not self._due or self._due[0][0] > now_ms:
                break
            at_ms, owner, number = heappop(self._due)
            if owner == TERMINI_DUE:
                self._expire_termini(now_ms)
                continue
            queue = self._by_number.get(owner)
            entry = None if queue is None else queue.live.get(number)
            if queue is None or entry is None or number in queue.locked:
                continue  # gone, or in a transaction: when that ends, its time is looked at
            if entry.expires_ms == at_ms:
                expired.setdefault(owner, []).append((number, _expired(queue, entry)))
        for owner, changes in sorted(expired.items()):
            queue = self._by_number[owner]
            queue.dropped += sum(after is None for _, after in changes)
            self._head_changed(queue)
            self._settle(queue, changes)

    def next_deadline_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    # Other partitions have nothing to do with these queues.

    def receive(self, origin: int, data: bytes) -> None:
        """Nothing is sent between partitions."""

    def joined(self, prg: int) -> None:
        """A queue stays where it was made."""


def _expired(queue: Queue, entry: QueueEntry) -> QueueEntry | None:
    if not queue.spec.keeps_expired:
        return None
    return msgspec.structs.replace(entry, dead=b"expired", expires_ms=0)
