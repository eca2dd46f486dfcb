"""Transactions of one connection: what was sent and settled under each waits for its discharge.

All work of one in one partition is one entry of its log. Work in several is prepared in each, and
one of them decides (`SpreadCommit`). Either way it counts whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from quantum.broker.queues import NewMessage, QueueRefusal, Settlement
from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpLink,
    AmqpSession,
    Condition,
    Declared,
    DeclareReceived,
    DeliveryState,
    DischargeReceived,
    ErrorValue,
    OutgoingDelivery,
    RejectedOutcome,
    TransactionalState,
)
from quantum.protocols.amqp.session.lane import Done
from quantum.protocols.amqp.session.spread_commit import SpreadCommit, TransactionPart, begin_commit
from quantum.protocols.amqp.session.tenant_queues import TenantQueues

OPEN_MAX: Final = 64
"""Transactions of one connection at once."""
BYTES_MAX: Final = 16 << 20
MESSAGES_MAX: Final = 10_000
TIME_MS_MAX: Final = 60_000
"""A transaction that is not discharged by then is rolled back."""
Ensure = Callable[[bytes, Callable[[ErrorValue | None], None]], None]
Tell = Callable[[AmqpSession, int, DeliveryState], None]


class TransactedLink(Protocol):
    """A link whose deliveries a transaction settles."""

    @property
    def queue(self) -> bytes: ...
    @property
    def terminus(self) -> bytes:
        """Its durable end; empty: none."""
        ...

    @property
    def is_over(self) -> bool: ...

    def take_held(self, deliveries: list[OutgoingDelivery]) -> list[OutgoingDelivery]:
        """Return those of which the client has said nothing else."""
        ...

    def commit(self, delivery: OutgoingDelivery, outcome: DeliveryState | None) -> Settlement:
        """Return what is to be said; the message stays the link's until that is in the log."""
        ...

    def committed(self, delivery: OutgoingDelivery, said: Settlement) -> None:
        """It is."""

    def give_back(self, delivery: OutgoingDelivery, *, failed: bool) -> None:
        """Let a message be given again whose transaction did not count."""


@dataclass(slots=True)
class TransactedSettlement:
    """What a client said of a delivery under a transaction; `settled`: it is done with it."""

    link: TransactedLink
    delivery: OutgoingDelivery
    outcome: DeliveryState | None
    settled: bool


@dataclass(slots=True)
class AmqpTransaction:
    """Work that counts together."""

    link: AmqpLink
    began_ms: int
    messages: list[tuple[bytes, NewMessage]] = field(default_factory=list)
    settles: list[TransactedSettlement] = field(default_factory=list)
    bytes: int = 0
    failed: ErrorValue | None = None
    waits: int = 0
    """Queues that are being made for its messages."""
    discharge: DischargeReceived | None = None
    """Its end, which waits for them."""

    @property
    def is_too_large(self) -> bool:
        count = max(len(self.messages), len(self.settles))
        return self.bytes > BYTES_MAX or count > MESSAGES_MAX


class Transactions:
    """All transactions of one connection."""

    def __init__(self, home: TenantQueues, entropy: Callable[[int], bytes], tell: Tell) -> None:
        self._home = home
        self._entropy = entropy
        self._tell = tell
        self._open: dict[bytes, AmqpTransaction] = {}
        self._commits: list[SpreadCommit] = []

    # What the client says.

    def on_declare(self, event: DeclareReceived) -> None:
        """Begin one, unless there are too many."""
        answer: DeliveryState
        if len(self._open) >= OPEN_MAX:
            answer = _refused(Condition.RESOURCE_LIMIT_EXCEEDED, "too many transactions")
        else:
            txn_id = self._entropy(16)
            self._open[txn_id] = AmqpTransaction(event.link, self._home.clock_ms())
            answer = Declared(txn_id)
        self._tell(event.link.session, event.delivery_id, answer)

    def on_discharge(self, event: DischargeReceived) -> None:
        """End one: the answer says whether its work counts."""
        found = self._open.get(event.txn_id)
        if found is not None and found.waits:
            found.discharge = event
        else:
            self._discharge(event)

    def _discharge(self, event: DischargeReceived) -> None:
        def then(state: DeliveryState) -> None:
            self._tell(event.link.session, event.delivery_id, state)

        found = self._open.pop(event.txn_id, None)
        if found is None:
            then(_refused(Condition.UNKNOWN_TRANSACTION, "there is no such transaction"))
        elif event.fail:
            _roll_back(found)
            then(AcceptedOutcome())
        elif found.failed is not None:
            _roll_back(found)
            then(RejectedOutcome(found.failed))
        else:
            self._commit(event.txn_id, found, then)

    def post(
        self, txn_id: bytes, queue: bytes, message: NewMessage, ensure: Ensure | None, done: Done
    ) -> None:
        """Let a message count with a transaction; `ensure` makes a queue that may not be there."""
        found = self._open.get(txn_id)
        if found is None:
            done(QueueRefusal.NO_TRANSACTION)
            return
        if found.failed is None:
            found.bytes += len(message.payload)
            found.messages.append((queue, message))
            self._bound(found)
        if ensure is None:
            done(QueueRefusal.NONE)
        else:
            self._ensure(found, queue, ensure, done)

    def _ensure(self, found: AmqpTransaction, queue: bytes, ensure: Ensure, done: Done) -> None:
        """Answer when there is a queue; the end of the transaction waits for that."""
        found.waits += 1

        def ready(error: ErrorValue | None) -> None:
            found.waits -= 1
            if error is not None and found.failed is None:
                _roll_back(found)
                found.failed = ErrorValue(Condition.TRANSACTION_ROLLBACK, error.description)
            done(QueueRefusal.NONE if error is None else QueueRefusal.NO_QUEUE)
            if found.discharge is not None and not found.waits:
                self._discharge(found.discharge)

        ensure(queue, ready)

    def acquire(
        self,
        link: TransactedLink,
        deliveries: list[OutgoingDelivery],
        state: TransactionalState,
        *,
        settled: bool,
    ) -> None:
        """Let what is said of deliveries count with a transaction."""
        found = self._open.get(state.txn_id)
        held = link.take_held(deliveries)
        if found is None or found.failed is not None:
            # There is nothing that it could count with: it is as if it had been rolled back.
            for each in held if settled else ():
                link.give_back(each, failed=True)
            return
        found.settles += [TransactedSettlement(link, each, state.outcome, settled) for each in held]
        self._bound(found)

    def _bound(self, found: AmqpTransaction) -> None:
        if found.is_too_large:
            _roll_back(found)
            why = "a transaction has more than it may"
            found.failed = ErrorValue(Condition.TRANSACTION_ROLLBACK, why)

    def link_closed(self, link: AmqpLink) -> None:
        """Roll back what was declared on a link that is gone (part 4, §4.2)."""
        for txn_id in [each for each, found in self._open.items() if found.link is link]:
            _roll_back(self._open.pop(txn_id))

    # Committing.

    def _commit(
        self, txn_id: bytes, found: AmqpTransaction, then: Callable[[DeliveryState], None]
    ) -> None:
        refused = self._refuse(found)
        if refused is not None:
            _roll_back(found)
            then(RejectedOutcome(refused))
            return
        said = [each.link.commit(each.delivery, each.outcome) for each in found.settles]
        parts = self._parts(found, said)

        def done(refusal: QueueRefusal) -> None:
            for each, settlement in zip(found.settles, said, strict=True):
                if refusal:
                    each.link.give_back(each.delivery, failed=False)
                else:
                    each.link.committed(each.delivery, settlement)
            then(_rejected(refusal) if refusal else AcceptedOutcome())

        commit = begin_commit(self._home, txn_id, parts, done)
        if commit is not None:
            self._commits.append(commit)

    def _refuse(self, found: AmqpTransaction) -> ErrorValue | None:
        """Say why a transaction cannot count, as far as that is known here."""
        if any(each.link.is_over for each in found.settles):
            why = "a link whose deliveries it settles is gone"
            return ErrorValue(Condition.TRANSACTION_ROLLBACK, why)
        places = {self._home.place(each) for each in _queues_of(found)}
        if len(places) > 1 and not self._home.knows_transactions(places):
            why = "not every node knows transactions over several partitions: upgrade them first"
            return ErrorValue(Condition.TRANSACTION_ROLLBACK, why)
        return None

    def _parts(self, found: AmqpTransaction, said: list[Settlement]) -> dict[int, TransactionPart]:
        parts: dict[int, TransactionPart] = {}
        for queue, message in found.messages:
            part = parts.setdefault(self._home.place(queue), TransactionPart())
            part.messages.append((queue, message))
        for each, settlement in zip(found.settles, said, strict=True):
            part = parts.setdefault(self._home.place(each.link.queue), TransactionPart())
            key = (each.link.queue, each.link.terminus)
            part.settles.setdefault(key, []).append(settlement)
        return parts

    def on_tick(self, now_ms: int) -> None:
        """Roll back what nobody discharged in time."""
        for found in self._open.values():
            if found.failed is None and now_ms - found.began_ms > TIME_MS_MAX:
                _roll_back(found)
                found.failed = ErrorValue(
                    Condition.TRANSACTION_TIMEOUT, "it was not discharged in time"
                )
        for commit in self._commits:
            commit.on_tick(now_ms)
        self._commits = [each for each in self._commits if not each.is_over]


def _queues_of(found: AmqpTransaction) -> set[bytes]:
    return {name for name, _ in found.messages} | {each.link.queue for each in found.settles}


def _roll_back(found: AmqpTransaction) -> None:
    """Let everything be as if it had not been.

    What the client is done with has failed, and is given again; what it has not settled it still
    holds.
    """
    settles, found.settles = found.settles, []
    found.messages.clear()
    for each in settles:
        if each.settled:
            each.link.give_back(each.delivery, failed=True)


def _rejected(refusal: QueueRefusal) -> RejectedOutcome:
    if refusal is QueueRefusal.NO_TRANSACTION:
        return _refused(Condition.TRANSACTION_TIMEOUT, "it was not decided in time")
    return _refused(Condition.TRANSACTION_ROLLBACK, f"it was refused: {refusal.name}")


def _refused(condition: str, why: str) -> RejectedOutcome:
    return RejectedOutcome(ErrorValue(condition, why))
