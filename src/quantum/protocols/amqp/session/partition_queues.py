"""The queues of one partition at its leader: AMQP's family (`ProtocolFamily`).

What receivers say in one turn becomes one command; what the machine says of queues is given to
their receivers. All of it ends with the leadership: whoever was attached looks for the next leader,
and brings what it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from quantum.broker.queues import (
    QUEUE_FAMILY,
    AcquireMessages,
    Queue,
    QueueEnded,
    QueueEntry,
    QueueGrew,
    QueueSection,
    QueueShrank,
    Settlement,
    SettlementKind,
    SettleMessages,
    decode_queue_reply,
    encode_queue_command,
)
from quantum.partition.leader import PartitionLeader
from quantum.partition.ports import EffectHandlers, ItemReaders
from quantum.protocols.amqp.session.dispatch_words import AttachmentEnd, ReceiverWish
from quantum.protocols.amqp.session.queue_dispatch import (
    QueueDispatch,
    QueueReceiver,
    ReceiverPort,
    Wants,
)

GRACE_MS: Final = 1_000
"""For so long a new leader waits for those who hold messages of an earlier one."""
SETTLES_MAX: Final = 4_096
"""So many settlements are one command."""


class BodySource(Protocol):
    """Where bodies are read that are not at hand."""

    def read(
        self,
        leader: PartitionLeader,
        file_id: int,
        place: int,
        then: Callable[[list[tuple[int, bytes]]], None],
    ) -> None:
        """Call `then` later, never from within, with places and bodies from a place on; with none
        where they cannot be read now."""


class PartitionQueues:
    """The receivers of the queues of one partition, while it is led here."""

    def __init__(
        self,
        leader: PartitionLeader,
        bodies: Callable[[], BodySource | None],
        clock_ms: Callable[[], int],
    ) -> None:
        self.leader = leader
        self._bodies = bodies
        self._clock_ms = clock_ms
        self._dispatches: dict[tuple[bytes, bool], QueueDispatch] = {}
        self._homes: dict[QueueReceiver, QueueDispatch] = {}
        self._durable: dict[bytes, QueueReceiver] = {}
        """Receivers with a durable end, by it."""
        self._said: list[tuple[QueueDispatch, QueueReceiver | None, Settlement]] = []
        self._began_ms = -1
        self._is_grace = False
        self._again: dict[QueueDispatch, None] = {}
        """Queues whose bodies could not be read: they are asked for again."""
        self._life = 0
        """Counts leaderships: what was asked in an earlier one is nothing now."""

    @property
    def section(self) -> QueueSection:
        section = self.leader.broker.state.sections[QUEUE_FAMILY]
        assert isinstance(section, QueueSection)
        return section

    @property
    def receiver_count(self) -> int:
        return len(self._homes)

    def unsettled_of(self, name: bytes) -> int:
        """How many messages and dead letters of a queue receivers hold, or have just settled."""
        found = [self._dispatches.get((name, is_dead)) for is_dead in (False, True)]
        return sum(len(each.holders) + len(each.settling) for each in found if each is not None)

    @property
    def unsettled(self) -> int:
        """The same of all queues."""
        found = self._dispatches.values()
        return sum(len(each.holders) + len(each.settling) for each in found)

    def receivers_of(self, name: bytes) -> int:
        """How many receivers a queue has; those of its dead letters do not count."""
        found = self._dispatches.get((name, False))
        return 0 if found is None else len(found.receivers)

    # The family.

    @property
    def effects(self) -> EffectHandlers:
        return {
            QueueGrew: self._on_grew,
            QueueShrank: self._on_shrank,
            QueueEnded: self._on_ended,
        }

    @property
    def unlogged(self) -> ItemReaders:
        return {}

    def prepare(self, now_ms: int) -> None:
        """Let the log have what receivers said in this turn."""
        while self._said:
            said, self._said = self._said[:SETTLES_MAX], self._said[SETTLES_MAX:]
            batches: dict[bytes, list[Settlement]] = {}
            for dispatch, _, settlement in said:
                batches.setdefault(dispatch.name, []).append(settlement)
            command = encode_queue_command(now_ms, SettleMessages(list(batches.items())))
            self.leader.submit(command, self._settled(said))

    def ended(self, why: str) -> None:  # noqa: ARG002
        homes, self._homes = self._homes, {}
        self._dispatches, self._said, self._again = {}, [], {}
        self._durable = {}
        self._began_ms = -1
        self._life += 1
        for receiver in homes:
            receiver.port.ended(AttachmentEnd.NOT_LEADER)

    def ring_changed(self) -> None:
        """A queue stays where it was made."""

    def on_tick(self) -> None:
        """Begin to give what was there before, when those who hold it have had their time."""
        if not self.leader.leading:
            return
        if self._began_ms < 0:
            self._began_ms, self._is_grace = self._clock_ms(), True
        elif self._is_grace and self._clock_ms() - self._began_ms >= GRACE_MS:
            self._is_grace = False
            self._again = dict.fromkeys(self._dispatches.values())
        if self._again and not self._is_grace:
            self._dispatch_again()

    # Receivers.

    def attach(
        self,
        port: ReceiverPort,
        wish: ReceiverWish,
        wants: Wants | None,
        held: list[int],
    ) -> QueueReceiver | None:
        """Attach a receiver; None: its port was told why not."""
        name, mode = wish.queue, wish.mode
        queue = self.section.queues.get(name)
        if not self.leader.leading or queue is None:
            is_led = self.leader.leading
            port.ended(AttachmentEnd.NO_QUEUE if is_led else AttachmentEnd.NOT_LEADER)
            return None
        key = (name, mode.is_dead)
        dispatch = self._dispatches.get(key)
        if dispatch is None:
            dispatch = QueueDispatch(name, dead=mode.is_dead, read=self._read)
            dispatch.begin(queue)
            self._dispatches[key] = dispatch
        if wish.terminus:
            self._steal(wish.terminus)
            port = AcquiringPort(self, dispatch, wish.terminus, port)
        receiver = QueueReceiver(port, mode, wants)
        receiver.terminus = wish.terminus
        dispatch.add(receiver, queue, held)
        self._homes[receiver] = dispatch
        if wish.terminus:
            self._durable[wish.terminus] = receiver
            for number in set(queue.held_by(wish.terminus)) - set(held):
                # The log gave it before the client had it: it is given again.
                self._say(dispatch, None, Settlement(number, SettlementKind.RELEASED))
        return receiver

    def _steal(self, terminus: bytes) -> None:
        """End an earlier attachment of a durable link: it has come back."""
        receiver = self._durable.pop(terminus, None)
        dispatch = None if receiver is None else self._homes.pop(receiver, None)
        if receiver is None or dispatch is None:
            return
        queue = self.section.queues.get(dispatch.name)
        for number in dispatch.remove(receiver):
            if queue is not None:
                dispatch.release(queue, number)
        receiver.port.ended(AttachmentEnd.STOLEN)

    def acquire(
        self, dispatch: QueueDispatch, terminus: bytes, numbers: list[int], then: Callable[[], None]
    ) -> None:
        """Let the log know who holds messages; `then` is called when it does."""
        life = self._life

        def done(reply: bytes | None) -> None:
            if not reply or life != self._life:
                return  # the next leader gives them
            if decode_queue_reply(reply).refusal:
                queue = self.section.queues.get(dispatch.name)
                for number in numbers:
                    if queue is not None:
                        dispatch.release(queue, number)
                self._again[dispatch] = None
            else:
                then()

        command = AcquireMessages(terminus, dispatch.name, numbers)
        self.leader.propose(encode_queue_command(self.leader.now_ms(), command), done)

    def credit(self, receiver: QueueReceiver, limit: int, taken: int, drain: int) -> None:
        """Take in how much a receiver wants, and how much of that has left for its client."""
        dispatch = self._homes.get(receiver)
        if dispatch is None:
            return
        receiver.limit, receiver.drain = limit, drain
        receiver.note_taken(taken)
        dispatch.room_again()
        self._dispatch(dispatch)

    def settle(self, receiver: QueueReceiver, said: list[Settlement]) -> None:
        """Take what a receiver says of what it holds; of what it does not hold, nothing counts."""
        dispatch = self._homes.get(receiver)
        queue = None if dispatch is None else self.section.queues.get(dispatch.name)
        if dispatch is None or queue is None:
            receiver.port.settled([each.number for each in said])
            return
        idle: list[int] = []
        released = False
        for each in said:
            if dispatch.holders.get(each.number) is not receiver:
                idle.append(each.number)
                continue
            if each.elsewhere:
                dispatch.exclude(receiver, each.number)
            if each.kind is SettlementKind.RELEASED and not receiver.terminus:
                dispatch.release(queue, each.number)
                idle.append(each.number)
                released = True
            else:
                self._say(dispatch, receiver, each)
        if idle:
            receiver.port.settled(idle)
        if released:
            self._dispatch(dispatch)

    def _say(
        self, dispatch: QueueDispatch, receiver: QueueReceiver | None, said: Settlement
    ) -> None:
        holder = dispatch.holders.pop(said.number, None)
        if holder is not None:
            holder.held.discard(said.number)
        dispatch.settling.add(said.number)
        self._said.append((dispatch, receiver, said))
        self.leader.tenant.touch(self.leader)

    def detach(self, receiver: QueueReceiver, *, failed: bool) -> None:
        """Let a receiver go; what it held is there for others, and counts as failed or not."""
        dispatch = self._homes.pop(receiver, None)
        if dispatch is None:
            return
        queue = self.section.queues.get(dispatch.name)
        if receiver.terminus and self._durable.get(receiver.terminus) is receiver:
            del self._durable[receiver.terminus]
        for number in dispatch.remove(receiver):
            if receiver.terminus:
                continue  # it stays with its durable end, until that comes back
            if failed:
                self._say(dispatch, None, Settlement(number, SettlementKind.FAILED))
            elif queue is not None:
                dispatch.release(queue, number)
        if dispatch.is_idle:
            self._dispatches.pop((dispatch.name, dispatch.dead), None)
        else:
            self._dispatch(dispatch)

    def _settled(
        self, said: list[tuple[QueueDispatch, QueueReceiver | None, Settlement]]
    ) -> Callable[[bytes | None], None]:
        life = self._life

        def done(reply: bytes | None) -> None:
            if reply is None or life != self._life:
                return  # the leadership is over: receivers bring it to the next one
            told: dict[QueueReceiver, list[int]] = {}
            for dispatch, receiver, settlement in said:
                queue = self.section.queues.get(dispatch.name)
                if queue is not None:
                    dispatch.release(queue, settlement.number)
                if receiver is not None:
                    told.setdefault(receiver, []).append(settlement.number)
            for receiver, numbers in told.items():
                receiver.port.settled(numbers)
            self._again |= dict.fromkeys(row[0] for row in said)
            self.leader.behind_effects(self._dispatch_again)

        return done

    def _dispatch_again(self) -> None:
        again, self._again = self._again, {}
        for dispatch in again:
            self._dispatch(dispatch)
            if dispatch.is_idle:
                self._dispatches.pop((dispatch.name, dispatch.dead), None)

    # What the machine says.

    def _on_grew(self, effect: QueueGrew) -> None:
        queue = self.section.queues.get(effect.name)
        dispatch = self._dispatches.get((effect.name, False))
        if queue is not None and dispatch is not None:
            dispatch.grew(queue, effect.numbers, effect.payloads)
            self._dispatch(dispatch)

    def _on_shrank(self, effect: QueueShrank) -> None:
        for is_dead in (False, True):
            dispatch = self._dispatches.get((effect.name, is_dead))
            if dispatch is not None:
                alive = set(effect.died) if is_dead else set()
                dispatch.shrank(each for each in effect.numbers if each not in alive)
        dead = self._dispatches.get((effect.name, True))
        queue = self.section.queues.get(effect.name)
        if dead is not None and queue is not None and effect.died:
            dead.grew(queue, effect.died, [])
            self._dispatch(dead)

    def _on_ended(self, effect: QueueEnded) -> None:
        for is_dead in (False, True):
            dispatch = self._dispatches.pop((effect.name, is_dead), None)
            if dispatch is not None:
                for receiver in (*dispatch.receivers, *dispatch.browsers):
                    self._homes.pop(receiver, None)
                    receiver.port.ended(AttachmentEnd.DELETED)

    def _dispatch(self, dispatch: QueueDispatch) -> None:
        queue = self.section.queues.get(dispatch.name)
        if queue is not None and not self._is_grace and self._began_ms >= 0:
            dispatch.dispatch(queue)

    def _read(self, dispatch: QueueDispatch, number: int) -> None:
        queue = self.section.queues.get(dispatch.name)
        source, life = self._bodies(), self._life
        entry = None if queue is None else queue.find(number)
        if queue is None or entry is None or source is None:
            return

        def then(read: list[tuple[int, bytes]]) -> None:
            if life != self._life:
                return
            found = bodies_of(queue, read)
            dispatch.read_done(found)
            if found:
                self._dispatch(dispatch)
            else:
                self._again[dispatch] = None

        source.read(self.leader, queue.file_id, entry.at, then)


class AcquiringPort:
    """The port of a durable receiver: what it is given is in the log before it leaves.

    All else that the leader says stays behind that.
    """

    def __init__(
        self, queues: PartitionQueues, dispatch: QueueDispatch, terminus: bytes, port: ReceiverPort
    ) -> None:
        self._queues = queues
        self._dispatch = dispatch
        self._terminus = terminus
        self._port = port
        self._pending = 0
        self._drained = -1
        self._is_over = False

    def deliver(self, deliveries: list[tuple[QueueEntry, bytes]]) -> None:
        numbers = [entry.number for entry, _ in deliveries]
        self._pending += 1

        def then() -> None:
            self._pending -= 1
            if self._is_over:
                return
            self._port.deliver(deliveries)
            if not self._pending and self._drained >= 0:
                drained, self._drained = self._drained, -1
                self._port.drained(drained)

        self._queues.acquire(self._dispatch, self._terminus, numbers, then)

    def settled(self, numbers: list[int]) -> None:
        self._port.settled(numbers)

    def drained(self, drain: int) -> None:
        if self._pending:
            self._drained = drain
        else:
            self._port.drained(drain)

    def ended(self, why: int) -> None:
        self._is_over = True
        self._port.ended(why)


def bodies_of(queue: Queue, read: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Say whose bodies were read: what stands at a place may be another's, or nobody's."""
    owners = [(queue.entry_at(place), body) for place, body in read]
    return [(entry.number, body) for entry, body in owners if entry is not None]
