"""Transactions between PRGs: who joins them, how they end, and the answers; all by items.

The coordinator's PRG decides. A partition or a group hears of it by an item, in order: it lets
batches in from then on, or writes the marker, and says so by an item. So nothing is lost between
two logs, and nothing counts twice.
"""

from __future__ import annotations

from quantum.broker.streams.answers import Awaited, encode_reply
from quantum.broker.streams.group_commands import AdmitGroupTransaction, EndInGroup
from quantum.broker.streams.partition import AdmitTransaction, EndInPartition
from quantum.broker.streams.section_items import EndNoted, TransactionEnded, TransactionOpened
from quantum.broker.streams.section_state import StreamState
from quantum.broker.streams.transaction_commands import (
    AddToTransaction,
    EndArrived,
    EndMarker,
    EndTransaction,
    ExpireTransactions,
    InitProducer,
    ProducerGiven,
    TransactionCommand,
    TransactionResult,
)
from quantum.broker.streams.types import StreamRefusal

_R = StreamRefusal


def apply_transaction(state: StreamState, command: TransactionCommand) -> bytes:
    """Apply a command of a client, or of the coordinator's leader for one."""
    command.now_ms = state.world.now_ms
    match command:
        case InitProducer(transactional_id=None):
            result = state.transactions.apply(command)
            state.note_header()
            return encode_reply(result.answer)
        case InitProducer() | EndTransaction():
            return _coordinate(state, command)
        case AddToTransaction():
            return _add(state, command)
        case _:
            return encode_reply(_R.NOT_COORDINATOR)  # these come by items and by the clock


def _coordinate(state: StreamState, command: InitProducer | EndTransaction) -> bytes:
    name = command.transactional_id or ""
    if not state.coordinates_transaction(name):
        return encode_reply(_R.NOT_COORDINATOR)
    given = state.transactions.given
    result = state.transactions.apply(command)
    if state.transactions.given != given:
        state.note_header()
    state.note_transaction(name)
    send_ends(state, result)
    return encode_reply(result.answer)


def _add(state: StreamState, command: AddToTransaction) -> bytes:
    if not state.coordinates_transaction(command.transactional_id):
        return encode_reply(_R.NOT_COORDINATOR)
    owners = [(each, state.owner_of(*each)) for each in command.partitions]
    if any(owner is None for _, owner in owners):
        return encode_reply(_R.TOPIC_UNKNOWN)
    prgs = {owner for _, owner in owners if owner is not None}
    prgs |= {state.group_prg(each) for each in command.groups}
    if any(state.world.is_channel_full(each) for each in sorted(prgs)):
        return encode_reply(_R.BUSY)
    result = state.transactions.apply(command)
    if not isinstance(result.answer, ProducerGiven):
        return encode_reply(result.answer)
    state.note_transaction(command.transactional_id)
    return encode_reply(result.answer, _open_everywhere(state, command))


def _open_everywhere(state: StreamState, command: AddToTransaction) -> Awaited:
    """Tell all that were named, also those that were before: their item may still be on its way.

    The answer must not leave before it has arrived, or the first batch would be refused.
    """
    facts = (command.producer_id, command.epoch)
    places: dict[int, int] = {}
    for topic, partition in command.partitions:
        owner = state.owner_of(topic, partition)
        assert owner is not None
        place = state.send(owner, TransactionOpened(*facts, topic, partition))
        places.update((place,) if place is not None else ())
    for group in command.groups:
        place = state.send(state.group_prg(group), TransactionOpened(*facts, "", 0, group))
        places.update((place,) if place is not None else ())
    return sorted(places.items())


def send_ends(state: StreamState, result: TransactionResult) -> None:
    """Tell partitions and groups how transactions ended."""
    for marker in result.markers:
        facts = (marker.transactional_id, marker.producer_id, marker.epoch, marker.commit)
        if marker.group is not None:
            owner: int | None = state.group_prg(marker.group)
            item = TransactionEnded(*facts, "", 0, marker.group)
        else:
            assert marker.partition is not None
            owner = state.owner_of(*marker.partition)
            item = TransactionEnded(*facts, *marker.partition)
        if owner is None:
            _arrived_nowhere(state, marker)
        else:
            state.send(owner, item)


def _arrived_nowhere(state: StreamState, marker: EndMarker) -> None:
    """The topic is gone: there is nothing to wait for."""
    facts = (marker.transactional_id, marker.producer_id, marker.epoch, marker.partition)
    state.transactions.apply(EndArrived(state.world.now_ms, *facts))
    state.note_transaction(marker.transactional_id)


def open_here(state: StreamState, item: TransactionOpened) -> None:
    """Let batches, or offsets, of a transaction in from now on."""
    facts = (state.world.now_ms, item.producer_id, item.epoch)
    if item.group is not None:
        command = AdmitGroupTransaction(facts[0], item.group, *facts[1:])
        state.note_group(item.group, state.groups.apply(command))
        return
    found = state.hosted(item.topic, item.partition)
    if found is not None:
        page, hosted = found
        hosted.log.apply(AdmitTransaction(*facts))
        state.world.page_changed(page)


def end_here(state: StreamState, origin: int, item: TransactionEnded) -> None:
    """End a transaction in a partition or in a group, and say so."""
    now_ms = state.world.now_ms
    if item.group is not None:
        facts = (item.group, item.producer_id, item.epoch, item.commit)
        state.note_group(item.group, state.groups.apply(EndInGroup(now_ms, *facts)))
    else:
        found = state.hosted(item.topic, item.partition)
        if found is not None:
            page, hosted = found
            command = EndInPartition(now_ms, item.producer_id, item.epoch, item.commit)
            change = hosted.end(command, state.term, now_ms)
            if change is not None:
                state.world.note_stream(change)
            state.world.page_changed(page)
    what = (item.topic, item.partition, item.group)
    state.send(origin, EndNoted(item.transactional_id, item.producer_id, item.epoch, *what))


def end_noted(state: StreamState, item: EndNoted) -> None:
    """A partition or a group has the end: with the last of them the transaction is complete."""
    partition = None if item.group is not None else (item.topic, item.partition)
    facts = (item.transactional_id, item.producer_id, item.epoch, partition, item.group)
    state.transactions.apply(EndArrived(state.world.now_ms, *facts))
    state.note_transaction(item.transactional_id)


def expire_transactions(state: StreamState) -> None:
    """Abort what is open for too long, and forget ids that nobody used for long."""
    before, due = state.transactions.ids(), sorted(state.transaction_due)
    given = state.transactions.given
    result = state.transactions.apply(ExpireTransactions(state.world.now_ms))
    if state.transactions.given != given:
        state.note_header()
    for name in {*due, *before} - set(state.transactions.ids()) | set(due):
        state.note_transaction(name)
    send_ends(state, result)
