"""A link that a client receives on: it asks the queue's leader for as much as there is credit.

The leader may change under it. Then the link looks for the next one and tells it what the client
holds and what it has said of that: the client notices a pause at most.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from quantum.broker.queues import QueueEntry, Settlement, SettlementKind
from quantum.protocols.amqp.engine import (
    AcceptedOutcome,
    AmqpLink,
    AmqpPeerFault,
    DeliveryReceived,
    DeliveryState,
    LinkState,
    ModifiedOutcome,
    Outcome,
    OutgoingDelivery,
    RejectedOutcome,
    ReleasedOutcome,
    SenderSettleMode,
    SessionState,
    TransactionalState,
)
from quantum.protocols.amqp.session.client_port import ClientPort
from quantum.protocols.amqp.session.dispatch_words import AttachmentEnd, ReceiverWish
from quantum.protocols.amqp.session.message_head import annotation_pairs, leaving
from quantum.protocols.amqp.session.refusal_table import end_error
from quantum.protocols.amqp.session.ways import Attachment

CREDIT_MAX: Final = 2_000
"""What is asked of the leader ahead, however much credit the client gives."""
_TAKEN_STEP: Final = 64
_SEEK_MS_MAX: Final = 30_000
"""A link that finds no leader for so long is detached, and may be attached again."""
_REASON_BYTES_MAX: Final = 512
_FINAL: Final = (SettlementKind.ACCEPTED, SettlementKind.REJECTED)


class OutgoingLink:
    """Our end of a link from a queue (`ReceiverPort`)."""

    def __init__(self, client: ClientPort, link: AmqpLink, wish: ReceiverWish) -> None:
        self._client = client
        self._link = link
        self._wish = wish
        self._queue = wish.queue
        self._mode = wish.mode
        self._default: Outcome = ReleasedOutcome()
        if link.source is not None and link.source.default_outcome is not None:
            self._default = link.source.default_outcome
        self._settles = link.snd_settle_mode is SenderSettleMode.SETTLED
        self._prg = client.home.place(wish.queue)
        self._attachment: Attachment | None = None
        self._is_over = False
        self._is_closed = self._is_failed = False
        self._is_ready = False
        """Whether its queue is there to be asked for."""
        self._seeking_ms = client.home.clock_ms()
        self._buffer: deque[tuple[QueueEntry, bytes]] = deque()
        self._sent = self._told_sent = 0
        """Deliveries of this attachment that have left, and as far as the leader knows."""
        self._told: tuple[int, int] = (0, 0)
        self._drain = self._drained = 0
        self._is_draining = False
        self._held: dict[int, OutgoingDelivery] = {}
        """What the client has, and has said nothing of."""
        self._said: dict[int, Settlement] = {}
        """What it has said, and the log does not have yet."""
        self._committing: set[int] = set()
        """What a transaction says of it is on its way into the log: it is nobody else's."""
        self._confirm: dict[int, tuple[OutgoingDelivery, DeliveryState]] = {}
        """Deliveries that the client wants to be settled by us (rcv-settle-mode second)."""

    # Finding the leader.

    def begin(self) -> None:
        """Go on: the queue is there."""
        self._is_ready = True
        self.seek()

    def seek(self) -> None:
        """Attach to whoever leads the queue, if somebody does."""
        if self._is_over or self._attachment is not None:
            return
        said = list(self._said.values())
        held = [] if self._mode.is_copy else [*self._held, *self._committing, *self._said]
        self._sent = self._told_sent = 0
        self._told = (0, 0)
        self._attachment = self._client.home.ways.attach(self, self._prg, self._wish, held, said)
        if self._attachment is not None:
            self._seeking_ms = -1
            self._tell()

    def on_tick(self) -> None:
        """Look again for a leader; give up after a while."""
        if self._is_over or not self._is_ready or self._attachment is not None:
            return
        now_ms = self._client.home.clock_ms()
        if self._seeking_ms < 0:
            self._seeking_ms = now_ms
        self.seek()
        if self._attachment is None and now_ms - self._seeking_ms > _SEEK_MS_MAX:
            self._end(AttachmentEnd.NOT_LEADER)

    # What the leader says.

    def deliver(self, deliveries: list[tuple[QueueEntry, bytes]]) -> None:
        self._buffer.extend(deliveries)
        self.pump()

    def settled(self, numbers: list[int]) -> None:
        for number in numbers:
            self._said.pop(number, None)
            confirmed = self._confirm.pop(number, None)
            if confirmed is not None:
                self._settle_sent(*confirmed)

    def _settle_sent(self, delivery: OutgoingDelivery, state: DeliveryState) -> None:
        session = self._link.session
        if session.state is SessionState.MAPPED and delivery.delivery_id in session.outgoing:
            session.settle_sent([delivery.delivery_id], state)
            self._client.touch()

    def drained(self, drain: int) -> None:
        self._drained = drain
        self.pump()

    def ended(self, why: int) -> None:
        self._attachment = None
        self._buffer.clear()
        if why != AttachmentEnd.NOT_LEADER:
            self._end(why)

    def _end(self, why: int) -> None:
        self._is_over = True
        if self._link.state is LinkState.ATTACHED:
            self._link.detach(error=end_error(why), closed=why != AttachmentEnd.NOT_LEADER)
            self._client.touch()

    # Sending.

    def on_flow(self) -> None:
        """The client gave or took credit, or wants what there is and no more."""
        link = self._link
        if link.drain and link.credit > 0:
            if not self._is_draining:
                self._is_draining = True
                self._drain += 1
        else:
            if link.drain and not link.waiting:
                link.drained()  # there is no credit to use up, and who asks waits for the answer
            self._is_draining = False
        self.pump()

    def pump(self) -> None:
        """Send what waits, as far as credit, window and wire allow; then ask for more."""
        link, buffer = self._link, self._buffer
        while buffer and link.is_sendable and self._client.writable:
            entry, payload = buffer.popleft()
            self._send(entry, leaving(entry, payload))
        if self._is_draining and self._drained == self._drain and not buffer and not link.waiting:
            self._is_draining = False
            if link.state is LinkState.ATTACHED and link.credit > 0:
                link.drained()
        self._client.touch()
        self._tell()

    def _send(self, entry: QueueEntry, payload: bytes) -> None:
        link = self._link
        self._sent += 1
        limit = link.peer_message_bytes_max
        if limit and len(payload) > limit:
            self._say(entry.number, SettlementKind.REJECTED, b"larger than its receiver takes")
            return
        tag = entry.number.to_bytes(8, "big")
        delivery = link.send(tag, payload, settled=self._settles)
        if self._settles:
            self._say(entry.number, SettlementKind.ACCEPTED)
        elif not self._mode.is_copy:
            self._held[entry.number] = delivery

    def _tell(self) -> None:
        """Tell the leader how much may come, where that is news."""
        attachment, link = self._attachment, self._link
        if attachment is None:
            return
        credit = max(0, link.credit - link.waiting) if link.state is LinkState.ATTACHED else 0
        told = (self._sent + min(credit, CREDIT_MAX), self._drain)
        if told != self._told or self._sent - self._told_sent >= _TAKEN_STEP:
            self._told, self._told_sent = told, self._sent
            attachment.credit(told[0], self._sent, self._drain)

    # What the client says.

    def on_disposition(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, *, settled: bool
    ) -> None:
        if isinstance(state, TransactionalState):
            self._client.transactions.acquire(self, deliveries, state, settled=settled)
            return
        outcome = state if is_outcome(state) else (self._default if settled else None)
        if outcome is None:
            return
        said = []
        for delivery in deliveries:
            number = _number(delivery)
            if self._held.pop(number, None) is None:
                if not settled:
                    self._settle_sent(delivery, outcome)
                continue
            if not settled:
                self._confirm[number] = (delivery, outcome)
            said.append(self._settlement(number, outcome))
        self._say_all([each for each in said if each is not None])

    # Transactions (`TransactedLink`).

    @property
    def queue(self) -> bytes:
        return self._queue

    @property
    def terminus(self) -> bytes:
        return self._wish.terminus

    @property
    def is_over(self) -> bool:
        return self._is_over

    def take_held(self, deliveries: list[OutgoingDelivery]) -> list[OutgoingDelivery]:
        return [each for each in deliveries if _number(each) in self._held]

    def commit(self, delivery: OutgoingDelivery, outcome: DeliveryState | None) -> Settlement:
        number = _number(delivery)
        self._held.pop(number, None)
        self._committing.add(number)
        return self._settlement(number, outcome if is_outcome(outcome) else self._default)

    def committed(self, delivery: OutgoingDelivery, said: Settlement) -> None:
        self._committing.discard(said.number)
        self._settle_sent(delivery, AcceptedOutcome())
        if said.kind not in _FINAL:
            # It is a message again, which the leader's memory still has as given to us.
            kind = SettlementKind.RELEASED
            self._say_all([Settlement(said.number, kind, elsewhere=said.elsewhere)])
        self._let_go()

    def give_back(self, delivery: OutgoingDelivery, *, failed: bool) -> None:
        number = _number(delivery)
        self._committing.discard(number)
        self._held.pop(number, None)
        self._settle_sent(delivery, ReleasedOutcome())
        self._say(number, SettlementKind.FAILED if failed else SettlementKind.RELEASED)
        self._let_go()

    def _settlement(self, number: int, outcome: DeliveryState | None) -> Settlement:
        try:
            return settlement_of(number, outcome)
        except AmqpPeerFault as fault:
            self._link.fail(fault)
            return Settlement(number, SettlementKind.RELEASED)

    def _say(self, number: int, kind: SettlementKind, reason: bytes = b"") -> None:
        if not self._mode.is_copy:
            self._say_all([Settlement(number, kind, reason)])

    def _say_all(self, said: list[Settlement]) -> None:
        for each in said:
            self._said[each.number] = each
        if said and self._attachment is not None:
            self._attachment.settle(said)

    def on_delivery(self, event: DeliveryReceived) -> None:
        """Nothing is received on this link."""

    def closed(self, *, failed: bool) -> None:
        """Let the leader have back what the client holds."""
        self._is_over = self._is_closed = True
        self._is_failed = failed
        if self._attachment is not None and self._committing:
            self._attachment.credit(self._sent, self._sent, self._drain)
        self._let_go()

    def _let_go(self) -> None:
        """Leave the leader, once no transaction holds messages by this link."""
        if self._is_closed and not self._committing and self._attachment is not None:
            attachment, self._attachment = self._attachment, None
            attachment.detach(failed=self._is_failed)


def _number(delivery: OutgoingDelivery) -> int:
    """Return the number of the message of a delivery: its tag."""
    return int.from_bytes(delivery.tag, "big")


def settlement_of(number: int, outcome: DeliveryState | None) -> Settlement:
    """Say what an outcome means for a message. Raises AmqpPeerFault for wrong annotations."""
    match outcome:
        case AcceptedOutcome():
            return Settlement(number, SettlementKind.ACCEPTED)
        case RejectedOutcome(error):
            return Settlement(number, SettlementKind.REJECTED, _reason(error))
        case ModifiedOutcome(failed, elsewhere, annotations):
            pairs = annotation_pairs(annotations)
            kind = SettlementKind.FAILED if failed else SettlementKind.CHANGED
            if not failed and not pairs:
                kind = SettlementKind.RELEASED
            return Settlement(number, kind, b"", pairs, elsewhere=bool(elsewhere))
        case _:
            return Settlement(number, SettlementKind.RELEASED)


def is_outcome(state: DeliveryState | None) -> bool:
    return isinstance(state, AcceptedOutcome | RejectedOutcome | ReleasedOutcome | ModifiedOutcome)


def _reason(error: object) -> bytes:
    condition = getattr(error, "condition", "") or ""
    description = getattr(error, "description", "") or ""
    return " ".join(each for each in (condition, description) if each).encode()[:_REASON_BYTES_MAX]
