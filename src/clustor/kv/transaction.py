"""All-or-nothing transactions: everything is checked before anything is changed."""

from __future__ import annotations

from typing import assert_never

from clustor.kv.commands import (
    Comparison,
    KvRefused,
    RevisionIs,
    Txn,
    TxnConflict,
    TxnDelete,
    TxnDeleteRange,
    TxnDone,
    TxnGet,
    TxnOperation,
    TxnPut,
    ValueIs,
)
from clustor.kv.store import Store
from clustor.kv.types import ErrorCode, Key, KvLimits, KvRecord
from clustor.kv.validation import refuse_key, refuse_write


def apply_txn(
    store: Store, limits: KvLimits, txn: Txn, now_ms: int
) -> KvRefused | TxnConflict | TxnDone:
    """Check the whole transaction, then do it at one revision."""
    refused = _refuse_size(limits, txn) or _refuse_overlap(txn.operations)
    if refused is not None:
        return refused
    for position, comparison in enumerate(txn.comparisons):
        if not _holds(store, comparison):
            return TxnConflict(store.revision, position, store.mod_revision(comparison.key))
    reads = _reads(store, txn.operations)
    read_bytes = sum(len(each.key) + len(each.value) for each in reads if each is not None)
    if read_bytes > limits.reply_bytes_max:
        return KvRefused(ErrorCode.REPLY_TOO_LARGE, read_bytes, limits.reply_bytes_max)
    results, changed = _do(store, txn.operations, reads, now_ms)
    return TxnDone(store.commit() if changed else store.revision, results)


def _refuse_size(limits: KvLimits, txn: Txn) -> KvRefused | None:
    count = max(len(txn.comparisons), len(txn.operations))
    if count > limits.txn_operations_max:
        return KvRefused(ErrorCode.TOO_MANY_OPERATIONS, count, limits.txn_operations_max)
    refusals = [refuse_key(limits, comparison.key) for comparison in txn.comparisons]
    refusals += [_refuse_operation(limits, operation) for operation in txn.operations]
    return next((refused for refused in refusals if refused is not None), None)


def _refuse_operation(limits: KvLimits, operation: TxnOperation) -> KvRefused | None:
    match operation:
        case TxnGet(key=key) | TxnDelete(key=key):
            return refuse_key(limits, key)
        case TxnPut(key=key, value=value):
            return refuse_write(limits, key, value)
        case TxnDeleteRange():
            return None
        case _:
            assert_never(operation)


def _refuse_overlap(operations: list[TxnOperation]) -> KvRefused | None:
    """Refuse two writes to one key: a watcher could not tell their order."""
    keys = [each.key for each in operations if isinstance(each, TxnPut | TxnDelete)]
    ranges = [each for each in operations if isinstance(each, TxnDeleteRange)]
    distinct = set(keys)
    overlaps = len(distinct) != len(keys) or any(
        each.start <= key and (each.end is None or key < each.end)
        for each in ranges
        for key in distinct
    )
    return KvRefused(ErrorCode.OVERLAPPING_OPERATIONS) if overlaps else None


def _holds(store: Store, comparison: Comparison) -> bool:
    record = store.get(comparison.key)
    match comparison:
        case RevisionIs(revision=revision):
            return revision == (0 if record is None else record.mod_revision)
        case ValueIs(value=value):
            return value == (None if record is None else record.value)
        case _:
            assert_never(comparison)


def _reads(store: Store, operations: list[TxnOperation]) -> list[KvRecord | None]:
    return [store.get(each.key) for each in operations if isinstance(each, TxnGet)]


def _do(
    store: Store, operations: list[TxnOperation], reads: list[KvRecord | None], now_ms: int
) -> tuple[list[KvRecord | int | None], bool]:
    results: list[KvRecord | int | None] = []
    changed = False
    remaining_reads = iter(reads)
    for operation in operations:
        match operation:
            case TxnGet():
                results.append(next(remaining_reads))
            case TxnPut(key=key, value=value, ttl_ms=ttl_ms):
                store.put(Key(key), value, now_ms + ttl_ms if ttl_ms else 0)
                changed = True
                results.append(None)
            case TxnDelete(key=key):
                count = store.delete(Key(key))
                changed = changed or count > 0
                results.append(count)
            case TxnDeleteRange(start=start, end=end):
                count = store.delete_range(start, end)
                changed = changed or count > 0
                results.append(count)
            case _:
                assert_never(operation)
    return results, changed
