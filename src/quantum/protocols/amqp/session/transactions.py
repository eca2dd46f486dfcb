"""Transactions of one connection: what was sent and settled under each waits for its discharge.

All work of one in one partition is one entry of its log: it counts whole, or not at all. Work in
several partitions is refused at the discharge, and nothing of it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from quantum.broker.queues import NewMessage, QueueRefusal, Settlement
from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    Condition,
    DeliveryState,
    ErrorValue,
    RejectedOutcome,
)
from quantum.protocols.amqp.session.outgoing import OutgoingLink
from quantum.protocols.amqp.session.tenant_queues import TenantQueues

OPEN_MAX: Final = 64
"""Transactions of one connection at once."""
BYTES_MAX: Final = 16 << 20
MESSAGES_MAX: Final = 10_000
TIME_MS_MAX: Final = 60_000
"""A transaction that is not discharged by then is rolled back."""


@dataclass(slots=True)
class AmqpTransaction:
    """Work that counts together."""

    began_ms: int
    messages: list[tuple[bytes, NewMessage]] = field(default_factory=list)
    settles: list[tuple[OutgoingLink, int, DeliveryState | None]] = field(default_factory=list)
    bytes: int = 0
    failed: ErrorValue | None = None


class Transactions:
    """All transactions of one connection."""

    def __init__(self, home: TenantQueues, entropy: Callable[[int], bytes]) -> None:
        self._home = home
        self._entropy = entropy
        self._open: dict[bytes, AmqpTransaction] = {}

    def declare(self) -> bytes | None:
        """Begin one; None: there are too many."""
        if len(self._open) >= OPEN_MAX:
            return None
        txn_id = self._entropy(16)
        self._open[txn_id] = AmqpTransaction(self._home.clock_ms())
        return txn_id

    def find(self, txn_id: bytes) -> AmqpTransaction | None:
        return self._open.get(txn_id)

    def post(self, txn_id: bytes, queue: bytes, message: NewMessage) -> bool:
        """Let a message count with a transaction; False: there is none of this id."""
        found = self._open.get(txn_id)
        if found is None:
            return False
        found.bytes += len(message.payload)
        found.messages.append((queue, message))
        if found.bytes > BYTES_MAX or len(found.messages) > MESSAGES_MAX:
            found.messages.clear()
            found.failed = ErrorValue(
                Condition.TRANSACTION_ROLLBACK, "a transaction has more than it may"
            )
        return True

    def discharge(
        self, txn_id: bytes, *, fail: bool, then: Callable[[DeliveryState], None]
    ) -> None:
        """End one: `then` hears whether its work counts."""
        found = self._open.pop(txn_id, None)
        if found is None:
            then(_refused(Condition.UNKNOWN_TRANSACTION, "there is no such transaction"))
        elif fail:
            self._roll_back(found)
            then(AcceptedOutcome())
        elif found.failed is not None:
            self._roll_back(found)
            then(RejectedOutcome(found.failed))
        else:
            self._commit(found, then)

    def _commit(self, found: AmqpTransaction, then: Callable[[DeliveryState], None]) -> None:
        names = {name for name, _ in found.messages}
        names |= {link.queue for link, _, _ in found.settles}
        places = {self._home.place(name) for name in names}
        if not places:
            then(AcceptedOutcome())
            return
        if len(places) > 1:
            self._roll_back(found)
            why = "its queues are in several partitions: one transaction is in one"
            then(_refused(Condition.TRANSACTION_ROLLBACK, why))
            return
        settles: dict[bytes, list[Settlement]] = {}
        for link, number, outcome in found.settles:
            settles.setdefault(link.queue, []).append(link.settlement(number, outcome))

        def done(refusal: QueueRefusal) -> None:
            if refusal:
                for link, number, _ in found.settles:
                    link.give_back(number)
                then(_refused(Condition.TRANSACTION_ROLLBACK, f"it was refused: {refusal.name}"))
            else:
                then(AcceptedOutcome())

        self._home.commit(places.pop(), found.messages, list(settles.items()), done)

    def _roll_back(self, found: AmqpTransaction) -> None:
        """Let everything be as if it had not been: what was acquired stays with its receiver."""
        found.messages.clear()
        found.settles.clear()

    def on_tick(self, now_ms: int) -> None:
        """Roll back what nobody discharged in time."""
        for found in self._open.values():
            if found.failed is None and now_ms - found.began_ms > TIME_MS_MAX:
                self._roll_back(found)
                found.failed = ErrorValue(
                    Condition.TRANSACTION_TIMEOUT, "it was not discharged in time"
                )


def _refused(condition: str, why: str) -> RejectedOutcome:
    return RejectedOutcome(ErrorValue(condition, why))
