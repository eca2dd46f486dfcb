"""The coordinator of transactions in one partition of the ring (KIP-98 with KIP-890).

A transaction is decided by one entry of this log: Prepare is the decision, the answer leaves
with it, and the markers follow. Until the last of them has arrived nothing new may begin, so that
a partition never sees two transactions of one producer at once. An epoch ends with its
transaction wherever the client can be told so; whoever times out or is taken over is fenced by a
new one.
"""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from quantum.broker.streams.coding import decode_state, digest_of, encode_state
from quantum.broker.streams.transaction_commands import (
    UNKNOWN,
    AddToTransaction,
    EndArrived,
    EndMarker,
    EndTransaction,
    ExpireTransactions,
    InitProducer,
    ProducerGiven,
    TransactionAdmission,
    TransactionCommand,
    TransactionResult,
    TransactionState,
)
from quantum.broker.streams.transaction_frames import (
    FrozenTransaction,
    Transaction,
    freeze_transaction,
    thaw_transaction,
)
from quantum.broker.streams.types import EPOCH_MAX, PRODUCER_BITS, StreamRefusal

_NAME: Final = "quantum.streams.transactions"
_VERSION: Final = 1
TIMEOUT_MS_MAX: Final = 900_000
ID_EXPIRY_MS: Final = 7 * 86_400_000
_S = TransactionState
_DECIDED: Final = (_S.PREPARE_COMMIT, _S.PREPARE_ABORT)
_R = StreamRefusal


class _Frozen(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    prg: int
    given: int
    now_ms: int
    transactions: list[FrozenTransaction]


class TransactionCoordinator:
    """All transactional ids that hash to one partition of the ring, and its producer ids."""

    def __init__(
        self,
        prg: int,
        *,
        timeout_ms_max: int = TIMEOUT_MS_MAX,
        id_expiry_ms: int = ID_EXPIRY_MS,
    ) -> None:
        self._prg = prg
        self._timeout_ms_max = timeout_ms_max
        self._id_expiry_ms = id_expiry_ms
        self._given = 0  # producer ids so far
        self.now_ms = 0
        self._known: dict[str, Transaction] = {}

    def get(self, transactional_id: str) -> Transaction | None:
        """Return what is known of an id (DescribeTransactions); not to be changed."""
        return self._known.get(transactional_id)

    def ids(self) -> list[str]:
        """List the ids (ListTransactions)."""
        return sorted(self._known)

    def apply(self, command: TransactionCommand) -> TransactionResult:
        """Apply one committed command: equal state and command give an equal result."""
        self.now_ms = max(self.now_ms, command.now_ms)
        match command:
            case InitProducer():
                return self._on_init(command)
            case AddToTransaction():
                return self._on_add(command)
            case EndTransaction():
                return self._on_end(command)
            case EndArrived():
                return self._on_arrived(command)
            case ExpireTransactions():
                return self._on_expire()
            case _:
                assert_never(command)

    def _fresh_id(self) -> int:
        self._given += 1
        return self._prg << PRODUCER_BITS | self._given

    def _on_init(self, command: InitProducer) -> TransactionResult:
        if command.transactional_id is None:
            return TransactionResult(ProducerGiven(self._fresh_id(), 0))
        if not 0 < command.timeout_ms <= self._timeout_ms_max:
            return TransactionResult(_R.BAD_TIMEOUT)
        known = self._known.get(command.transactional_id)
        if known is None:
            if command.producer_id != UNKNOWN:
                return TransactionResult(_R.UNKNOWN_PRODUCER)
            known = Transaction(self._fresh_id(), 0, command.timeout_ms, used_ms=self.now_ms)
            self._known[command.transactional_id] = known
            return TransactionResult(ProducerGiven(known.producer_id, 0))
        return self._init_again(command, known)

    def _init_again(self, command: InitProducer, known: Transaction) -> TransactionResult:
        claim = (command.producer_id, command.epoch)
        held = (known.producer_id, known.epoch)
        if command.producer_id != UNKNOWN and claim != held:
            # The answer to the same request may have been lost: it is given again.
            if claim != (known.last_producer_id, known.last_epoch):
                return TransactionResult(_R.FENCED)
            if known.state in {_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}:
                return TransactionResult(ProducerGiven(*held))
        if known.state in _DECIDED:
            return TransactionResult(_R.TRANSACTION_ENDING)
        if known.state is _S.ONGOING:
            markers = self._decide(command.transactional_id or "", known, commit=False, bump=True)
            return TransactionResult(_R.TRANSACTION_ENDING, markers=markers)
        self._bump(known)
        if command.producer_id == UNKNOWN:
            # A new instance: the one before it must not come back by the epoch that it had.
            known.last_producer_id = known.last_epoch = UNKNOWN
        known.state = _S.EMPTY
        known.timeout_ms = command.timeout_ms
        known.used_ms = self.now_ms
        return TransactionResult(ProducerGiven(known.producer_id, known.epoch))

    def _bump(self, known: Transaction) -> None:
        """Take the next epoch, and a new producer id before the last one is used: it fences."""
        known.last_producer_id, known.last_epoch = known.producer_id, known.epoch
        if known.epoch + 1 >= EPOCH_MAX:
            known.producer_id, known.epoch = self._fresh_id(), 0
        else:
            known.epoch += 1

    def _check(self, name: str, producer_id: int, epoch: int) -> Transaction | StreamRefusal:
        known = self._known.get(name)
        if known is None:
            return _R.UNKNOWN_PRODUCER
        if producer_id != known.producer_id:
            was = producer_id == known.last_producer_id
            return _R.FENCED if was else _R.UNKNOWN_PRODUCER
        return known if epoch == known.epoch else _R.FENCED

    def _on_add(self, command: AddToTransaction) -> TransactionResult:
        known = self._check(command.transactional_id, command.producer_id, command.epoch)
        if isinstance(known, StreamRefusal):
            return TransactionResult(known)
        if known.state in _DECIDED:
            return TransactionResult(_R.TRANSACTION_ENDING)
        if known.state is not _S.ONGOING:
            known.state = _S.ONGOING
            known.started_ms = self.now_ms
        known.used_ms = self.now_ms
        facts = (command.transactional_id, known.producer_id, known.epoch)
        partitions = sorted(set(command.partitions) - known.partitions)
        groups = sorted(set(command.groups) - known.groups)
        known.partitions.update(partitions)
        known.groups.update(groups)
        return TransactionResult(
            ProducerGiven(known.producer_id, known.epoch),
            admissions=(
                *(TransactionAdmission(*facts, partition=each) for each in partitions),
                *(TransactionAdmission(*facts, group=each) for each in groups),
            ),
        )

    def _on_end(self, command: EndTransaction) -> TransactionResult:
        known = self._known.get(command.transactional_id)
        if known is not None and self._is_repeat(command, known):
            return TransactionResult(ProducerGiven(known.producer_id, known.epoch))
        known_or = self._check(command.transactional_id, command.producer_id, command.epoch)
        if isinstance(known_or, StreamRefusal):
            return TransactionResult(known_or)
        if known_or.state in _DECIDED:
            return TransactionResult(_R.TRANSACTION_ENDING)
        if known_or.state is not _S.ONGOING:
            return self._end_nothing(command, known_or)
        markers = self._decide(
            command.transactional_id, known_or, commit=command.commit, bump=command.bump
        )
        return TransactionResult(
            ProducerGiven(known_or.producer_id, known_or.epoch), markers=markers
        )

    def _end_nothing(self, command: EndTransaction, known: Transaction) -> TransactionResult:
        """An abort of nothing is well, and ends the epoch: a batch may still be on its way."""
        if command.commit or not command.bump:
            return TransactionResult(_R.WRONG_TRANSACTION_STATE)
        self._bump(known)
        known.state = _S.COMPLETE_ABORT
        known.used_ms = self.now_ms
        return TransactionResult(ProducerGiven(known.producer_id, known.epoch))

    def _is_repeat(self, command: EndTransaction, known: Transaction) -> bool:
        """Say whether this end was decided already, the same way: its answer was lost."""
        decided = {
            True: (_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT),
            False: (_S.PREPARE_ABORT, _S.COMPLETE_ABORT),
        }[command.commit]
        claim = (command.producer_id, command.epoch)
        before = (known.last_producer_id, known.last_epoch)
        asked = before if command.bump else (known.producer_id, known.epoch)
        return known.state in decided and claim == asked

    def _decide(
        self, name: str, known: Transaction, *, commit: bool, bump: bool
    ) -> tuple[EndMarker, ...]:
        """Log the decision; markers carry the epoch that fences what was before them."""
        known.marker_producer_id = known.producer_id
        known.marker_epoch = known.epoch + 1 if bump else known.epoch
        if bump:
            self._bump(known)
        known.state = _S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT
        known.used_ms = self.now_ms
        markers = self._markers(name, known)
        self._complete_if_done(known)
        return markers

    def _markers(self, name: str, known: Transaction) -> tuple[EndMarker, ...]:
        commit = known.state is _S.PREPARE_COMMIT
        facts = (name, known.marker_producer_id, known.marker_epoch, commit)
        return (
            *(EndMarker(*facts, partition=each) for each in sorted(known.partitions)),
            *(EndMarker(*facts, group=each) for each in sorted(known.groups)),
        )

    def _complete_if_done(self, known: Transaction) -> None:
        if known.state in _DECIDED and not known.partitions and not known.groups:
            committed = known.state is _S.PREPARE_COMMIT
            known.state = _S.COMPLETE_COMMIT if committed else _S.COMPLETE_ABORT

    def _on_arrived(self, command: EndArrived) -> TransactionResult:
        known = self._known.get(command.transactional_id)
        if known is None or known.state not in _DECIDED:
            return TransactionResult()
        if (command.producer_id, command.epoch) != (known.marker_producer_id, known.marker_epoch):
            return TransactionResult()
        if command.partition is not None:
            known.partitions.discard(command.partition)
        if command.group is not None:
            known.groups.discard(command.group)
        self._complete_if_done(known)
        return TransactionResult()

    def next_expiry_ms(self) -> int | None:
        """Say when ExpireTransactions will next have something to abort, by the log's clock."""
        due = (
            each.started_ms + each.timeout_ms
            for each in self._known.values()
            if each.state is _S.ONGOING
        )
        return min(due, default=None)

    def _on_expire(self) -> TransactionResult:
        markers: list[EndMarker] = []
        for name, known in sorted(self._known.items()):  # as every replica would
            if known.state is _S.ONGOING:
                if self.now_ms >= known.started_ms + known.timeout_ms:
                    markers += self._decide(name, known, commit=False, bump=True)
            elif known.state not in _DECIDED and self.now_ms >= known.used_ms + self._id_expiry_ms:
                del self._known[name]
        return TransactionResult(markers=tuple(markers))

    def snapshot(self) -> bytes:
        """Encode the whole state; equal states give equal bytes."""
        rows = [freeze_transaction(name, each) for name, each in sorted(self._known.items())]
        frozen = _Frozen(self._prg, self._given, self.now_ms, rows)
        return encode_state(_NAME, _VERSION, frozen)

    def restore(self, snapshot: bytes) -> None:
        """Take the state of a snapshot. Raises SnapshotUnreadable, and changes nothing then."""
        frozen = decode_state(_NAME, _VERSION, _Frozen, snapshot)
        self._prg, self._given, self.now_ms = frozen.prg, frozen.given, frozen.now_ms
        self._known = {row.transactional_id: thaw_transaction(row) for row in frozen.transactions}

    # One id at a time: a section of a larger machine keeps each on a page of its own.

    @property
    def given(self) -> int:
        """How many producer ids were given so far."""
        return self._given

    @given.setter
    def given(self, given: int) -> None:
        self._given = given

    def freeze(self, name: str) -> bytes | None:
        """Encode one transactional id; None where it is not known."""
        known = self._known.get(name)
        if known is None:
            return None
        return encode_state(_NAME, _VERSION, freeze_transaction(name, known))

    def thaw(self, data: bytes) -> None:
        """Take one transactional id of a snapshot. Raises SnapshotUnreadable."""
        row = decode_state(_NAME, _VERSION, FrozenTransaction, data)
        self._known[row.transactional_id] = thaw_transaction(row)

    def drop(self, name: str) -> None:
        """Let go of one transactional id."""
        self._known.pop(name, None)

    def due_ms(self, name: str) -> int | None:
        """Say when a transaction times out; None: none of this id is open."""
        known = self._known.get(name)
        if known is None or known.state is not _S.ONGOING:
            return None
        return known.started_ms + known.timeout_ms

    def digest(self) -> bytes:
        """Digest the state, to compare replicas."""
        return digest_of(self.snapshot())
