"""What becomes of a message that a receiver has spoken about."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from quantum.broker.queues.commands import Settlement, SettlementKind
from quantum.broker.queues.queue import Queue, QueueEntry

Change: TypeAlias = "tuple[int, QueueEntry | None]"
"""A message, and what it is from then on; None: it is gone."""


def plan_settlements(queue: Queue | None, settlements: list[Settlement]) -> list[Change]:
    """Say what follows for those that are still open; the others were settled before.

    Of what a transaction has locked nothing else is heard until it is decided.
    """
    changes: list[Change] = []
    for settlement in settlements:
        entry = None if queue is None else queue.find(settlement.number)
        if queue is not None and entry is not None and entry.number not in queue.locked:
            after = _after(queue, entry, settlement)
            if after is not None and after.holder:
                after = replace(after, holder=b"")
            changes.append((entry.number, after))
    return changes


def _after(queue: Queue, entry: QueueEntry, said: Settlement) -> QueueEntry | None:
    match said.kind:
        case SettlementKind.ACCEPTED:
            return None
        case SettlementKind.RELEASED:
            return entry
        case SettlementKind.REJECTED:
            reason = entry.dead or b"rejected" + (b": " + said.reason if said.reason else b"")
            return replace(entry, dead=reason, expires_ms=0)
        case SettlementKind.CHANGED:
            return replace(entry, annotations=_merged(entry, said))
        case SettlementKind.FAILED:
            return _failed(queue, entry, said)


def _failed(queue: Queue, entry: QueueEntry, said: Settlement) -> QueueEntry:
    failures = entry.failures + 1
    after = replace(entry, failures=failures, annotations=_merged(entry, said))
    most = queue.spec.deliveries_max
    if most and failures >= most and not entry.dead:
        after = replace(after, dead=b"delivered %d times" % failures, expires_ms=0)
    return after


def _merged(entry: QueueEntry, said: Settlement) -> list[tuple[bytes, bytes]]:
    return sorted({**dict(entry.annotations), **dict(said.annotations)}.items())
