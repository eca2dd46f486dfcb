"""Queues for operators: made, looked at, emptied, moved, sent to and received from by request.

Every node answers: orders go to the leader of the queue's partition over the mesh, and what is
looked at is this node's replica, which may be a little behind. The tenant's rules decide.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from quantum.broker.queues import (
    DefineQueue,
    DeleteQueue,
    NewMessage,
    PurgeQueue,
    Queue,
    QueueEntry,
    QueueRefusal,
    QueueReply,
    QueueSpec,
    ReviveMessages,
    Settlement,
    SettlementKind,
)
from quantum.node.amqp_serving import file_bytes
from quantum.node.inner_client import peer_of
from quantum.node.queue_receiving import QueueTaker
from quantum.protocols.amqp.session.dispatch_words import ReceiverMode, ReceiverWish
from quantum.protocols.amqp.session.message_head import leaving, read_message
from quantum.protocols.amqp.session.partition_queues import PartitionQueues, bodies_of
from quantum.protocols.amqp.session.spread_commit import TransactionPart, begin_commit
from quantum.protocols.amqp.session.tenant_queues import QueueOrder, TenantQueues
from quantum.tenancy import Operation, ResourceKind
from quantum.tenants.binding import needs_list

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.node.service import BrokerService

_Answer = TypeVar("_Answer")
AT_ONCE_MAX: Final = 64
"""Requests that wait for messages."""
BYTES_MAX: Final = 1 << 20
"""What one answer has; one message always passes."""
READ_SECONDS_MAX: Final = 8.0
_MOVED_AT_ONCE: Final = 256


class QueueForbidden(Exception):
    """The tenant's rules do not allow it."""


class QueueOrderRefused(Exception):
    """The partition said no."""

    def __init__(self, refusal: QueueRefusal) -> None:
        super().__init__(refusal.name)
        self.refusal = refusal


class QueueUnanswered(Exception):
    """No leader answered in time: the order may or may not count."""


class QueuesBusy(Exception):
    """As many requests as a node takes wait for messages."""


@dataclass(frozen=True, slots=True)
class QueueCaller:
    """Who asks, for which tenant."""

    tenant: Tenant
    identity: str
    encrypted: bool


class BrokerQueues:
    """The queues of all tenants of a node."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._waiting = 0

    def home(self, caller: QueueCaller) -> TenantQueues:
        return self._service.amqp.tenants[caller.tenant.name]

    def may(self, caller: QueueCaller, operation: Operation, name: str) -> bool:
        """Say whether the tenant's rules allow something to the caller."""
        guard = caller.tenant.guard
        peer = peer_of(caller.tenant.name, caller.identity, encrypted=caller.encrypted)
        lists = needs_list(peer, shared=guard.is_shared)
        kind, key = ResourceKind.QUEUE, name.encode()
        return guard.may(caller.identity, operation, kind, key, needs_list=lists).allowed

    def check(self, caller: QueueCaller, operation: Operation, name: str) -> None:
        """Raise QueueForbidden where the tenant's rules do not allow it."""
        if not self.may(caller, operation, name):
            what = f"{operation.value.upper()}_REFUSED"
            caller.tenant.guard.note(what, b"", caller.identity, name.encode())
            raise QueueForbidden(name)

    # What there is.

    def all(self, caller: QueueCaller) -> list[tuple[PartitionQueues, Queue]]:
        """Return the queues that the caller may know of, by name."""
        found = [
            (queues, queue)
            for queues in self.home(caller).queues
            for queue in queues.section.queues.values()
        ]
        found.sort(key=lambda row: row[1].name)
        return [row for row in found if self.may(caller, Operation.DESCRIBE, _text(row[1].name))]

    def find(self, caller: QueueCaller, name: str) -> tuple[PartitionQueues, Queue]:
        """Return a queue; raises QueueOrderRefused where there is none."""
        self.check(caller, Operation.DESCRIBE, name)
        home, key = self.home(caller), name.encode()
        queues = home.queues[home.place(key)]
        queue = queues.section.queues.get(key)
        if queue is None:
            raise QueueOrderRefused(QueueRefusal.NO_QUEUE)
        return queues, queue

    def file_bytes(self, queues: PartitionQueues, queue: Queue) -> int:
        """Return how much this node's disk keeps for a queue."""
        return file_bytes(queues.leader, queue.file_id)

    async def peek(
        self, caller: QueueCaller, name: str, *, dead: bool, after: int, limit: int
    ) -> list[tuple[QueueEntry, bytes]]:
        """Look at messages behind a number, the oldest first; nothing is taken."""
        self.check(caller, Operation.CONSUME, name)
        queues, queue = self.find(caller, name)
        entries = queue.dead if dead else queue.live
        wanted = sorted(each for each in entries if each > after)[:limit]
        found: list[tuple[QueueEntry, bytes]] = []
        bodies: dict[int, bytes] = {}
        size = 0
        for number in wanted:
            entry = queue.find(number)
            if entry is not None and number not in bodies:
                bodies = dict(await self._read(queues, queue, entry.at))
            body = bodies.get(number)
            if entry is None or body is None:
                continue  # it was settled meanwhile
            found.append((entry, leaving(entry, body)))
            size += len(body)
            if size >= BYTES_MAX:
                break
        return found

    async def _read(
        self, queues: PartitionQueues, queue: Queue, place: int
    ) -> list[tuple[int, bytes]]:
        source = self._service.amqp.bodies
        if source is None:
            raise QueueUnanswered
        read: asyncio.Future[list[tuple[int, bytes]]] = _future()
        source.read(queues.leader, queue.file_id, place, partial(_set, read))
        return bodies_of(queue, await _in_time(read))

    # Orders.

    async def create(self, caller: QueueCaller, spec: QueueSpec) -> int:
        """Make a queue, or change one that is there."""
        home = self.home(caller)
        if not home.knows_queues(spec.name):
            raise QueueUnanswered
        refusal = home.refuse_queue(spec.name)
        if refusal:
            raise QueueOrderRefused(refusal)
        order = DefineQueue(spec)
        return await self._order(caller, Operation.MANAGE, spec.name, order, "QueueDefined")

    async def delete(self, caller: QueueCaller, name: str, *, if_empty: bool) -> int:
        key, order = name.encode(), DeleteQueue(name.encode(), if_empty)
        return await self._order(caller, Operation.MANAGE, key, order, "QueueDeleted")

    async def purge(self, caller: QueueCaller, name: str, *, dead: bool) -> int:
        key, order = name.encode(), PurgeQueue(name.encode(), dead)
        return await self._order(caller, Operation.MANAGE, key, order, "QueuePurged")

    async def revive(
        self, caller: QueueCaller, name: str, numbers: list[int], count_max: int
    ) -> int:
        key, order = name.encode(), ReviveMessages(name.encode(), numbers, count_max)
        return await self._order(caller, Operation.MANAGE, key, order, "DeadLettersRevived")

    async def _order(
        self, caller: QueueCaller, operation: Operation, name: bytes, order: QueueOrder, what: str
    ) -> int:
        self.check(caller, operation, _text(name))
        answered: asyncio.Future[QueueReply | None] = _future()
        self.home(caller).order(name, order, partial(_set, answered))
        reply = await answered  # asked for again until its own time is over
        if reply is None:
            raise QueueUnanswered
        if reply.refusal:
            raise QueueOrderRefused(reply.refusal)
        self._note(what, caller, name)
        return reply.done

    def _note(self, what: str, caller: QueueCaller, name: bytes) -> None:
        target, tenant = f"queue/{_text(name)}", caller.tenant.name
        self._service.note_act(what, "Done", who=caller.identity, target=target, tenant=tenant)

    # Messages.

    async def send(self, caller: QueueCaller, name: str, payload: bytes) -> None:
        """Send a message; returns when a quorum has it on disk."""
        self.check(caller, Operation.PRODUCE, name)
        self.find(caller, name)
        await self._enqueue(self.home(caller), name.encode(), [read_message(payload, 0)])

    async def _enqueue(self, home: TenantQueues, name: bytes, messages: list[NewMessage]) -> None:
        waiting: list[asyncio.Future[QueueRefusal]] = []
        for message in messages:
            done: asyncio.Future[QueueRefusal] = _future()
            home.enqueue(name, message, partial(_set, done))
            waiting.append(done)
        for refusal in await _in_time(asyncio.gather(*waiting)):
            if refusal:
                raise QueueOrderRefused(refusal)

    async def receive(
        self,
        caller: QueueCaller,
        wish: ReceiverWish,
        kind: SettlementKind,
        *,
        count: int,
        seconds: float,
    ) -> list[tuple[QueueEntry, bytes]]:
        """Take messages and settle them; they are answered when the log has that."""
        name = _text(wish.queue)
        self.check(caller, Operation.CONSUME, name)
        self.find(caller, name)
        if self._waiting >= AT_ONCE_MAX:
            raise QueuesBusy
        self._waiting += 1
        try:
            async with QueueTaker(self.home(caller), wish) as taker:
                entries = await taker.gather(count, BYTES_MAX, seconds)
                found = [(each, leaving(each, taker.payload(each.number))) for each in entries]
                await taker.settle([Settlement(each.number, kind) for each in entries])
        finally:
            self._waiting -= 1
        return found

    async def move(self, caller: QueueCaller, wish: ReceiverWish, target: str, count: int) -> int:
        """Let messages be another queue's; in one partition each counts once, whatever fails.

        Over two partitions the target has a message before its source lets go of it: a failure in
        between leaves it in both.
        """
        source = _text(wish.queue)
        self.check(caller, Operation.CONSUME, source)
        self.check(caller, Operation.PRODUCE, target)
        self.find(caller, source)
        self.find(caller, target)
        home, moved = self.home(caller), 0
        async with QueueTaker(home, wish) as taker:
            while moved < count:
                most = min(count - moved, _MOVED_AT_ONCE)
                entries = await taker.gather(most, BYTES_MAX, None)
                if not entries:
                    break
                await self._move(home, taker, wish.queue, target.encode(), entries)
                moved += len(entries)
        self._note("MessagesMoved", caller, wish.queue)
        return moved

    async def _move(
        self,
        home: TenantQueues,
        taker: QueueTaker,
        source: bytes,
        target: bytes,
        entries: list[QueueEntry],
    ) -> None:
        messages = [_as_new(each, taker.payload(each.number)) for each in entries]
        said = [Settlement(each.number, SettlementKind.ACCEPTED) for each in entries]
        places = {home.place(source), home.place(target)}
        if len(places) > 1 and not home.knows_transactions(places):
            await self._enqueue(home, target, messages)
            await taker.settle(said)
            return
        parts = {each: TransactionPart() for each in places}
        parts[home.place(target)].messages = [(target, each) for each in messages]
        parts[home.place(source)].settles[source, b""] = said
        done: asyncio.Future[QueueRefusal] = _future()
        begin_commit(home, os.urandom(16), parts, partial(_set, done))
        refusal = await _in_time(done)
        if refusal:
            raise QueueOrderRefused(refusal)
        taker.let_go([each.number for each in entries])


def _as_new(entry: QueueEntry, payload: bytes) -> NewMessage:
    """Return a message as another queue takes it: what became of it stays, its failures do not."""
    message = read_message(leaving(replace(entry, failures=0), payload), 0)
    message.ttl_ms, message.expires_ms = 0, entry.expires_ms
    return message


def wish_of(name: str, *, dead: bool, selector: str = "") -> ReceiverWish:
    """Say what a request takes from which queue."""
    mode = ReceiverMode.MOVE_DEAD if dead else ReceiverMode.MOVE
    return ReceiverWish(name.encode(), mode, selector)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _future() -> asyncio.Future[_Answer]:
    return asyncio.get_running_loop().create_future()


def _set(future: asyncio.Future[_Answer], answer: _Answer) -> None:
    if not future.done():
        future.set_result(answer)


async def _in_time(future: asyncio.Future[_Answer]) -> _Answer:
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            return await future
    except TimeoutError:
        raise QueueUnanswered from None
