"""Control calls in the audit log: each once, in order, over restarts; a broken trail is told."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec

from clustor.control.audit import NOTHING, AuditRecord, AuditRing
from clustor.control.objects import canonical
from clustor.control.types import AccessRole
from clustor.kv import Key, KvRecord, RecordPage, Revision
from clustor.runtime.audit.control_calls import (
    ControlFollower,
    ControlTrail,
    event_of_record,
    trail_ends,
)
from clustor.runtime.audit.log import open_desk
from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.security import AuditEvent
from tests.clustor.runtime.test_audit_desk import written
from tests.clustor.security.audit_logs import new_chain


def records(count: int, ring: AuditRing = AuditRing.CALLS) -> list[AuditRecord]:
    """Return a trail as the control plane's machine makes it."""
    made: list[AuditRecord] = []
    for number in range(1, count + 1):
        previous = sha256(canonical(made[-1])).digest() if made else NOTHING
        made.append(
            AuditRecord(
                ring=ring,
                sequence=number,
                at=100 + number,
                identity="spiffe://dev/operator/ann",
                roles=(AccessRole.OPERATOR,),
                break_glass=None,
                kind="RegisterNode",
                request_id=f"r-{number}",
                command_sha256=bytes(32),
                outcome="Done",
                touched=("node/4", "placement/1"),
                answer=b"secret",
                previous=previous,
            )
        )
    return made


class Log:
    """An audit log in memory that may be full."""

    def __init__(self) -> None:
        self.chain = new_chain()
        self.lines = [self.chain.begin_file(1, 0)]
        self.events: list[AuditEvent] = []
        self.room = 1 << 30

    def note(self, event: AuditEvent) -> bool:
        if self.room == 0:
            return False
        self.room -= 1
        self.events.append(event)
        self.lines.append(self.chain.append(event))
        return True

    def told(self) -> list[str]:
        return [event.trace_id or event.outcome for event in self.events]


def test_a_record_is_told_without_its_answer() -> None:
    event = event_of_record(records(1)[0])
    assert (event.who, event.what) == ("spiffe://dev/operator/ann", "RegisterNode")
    assert (event.object, event.trace_id, event.at_ms) == ("node/4 placement/1", "r-1", 101)
    assert event.facts["sequence"] == "1" and "secret" not in str(event)


def test_each_record_is_told_once_over_restarts() -> None:
    log, made = Log(), records(6)
    first = ControlTrail(log)
    assert all(first.on_record(record) for record in made[:4])
    again = ControlTrail(log, trail_ends(log.lines))
    assert all(again.on_record(record) for record in made)
    assert log.told() == [f"r-{number}" for number in range(1, 7)]


def test_rings_are_followed_apart() -> None:
    log = Log()
    trail = ControlTrail(log)
    for one, other in zip(records(3), records(3, AuditRing.PUBLICATIONS), strict=True):
        assert trail.on_record(one) and trail.on_record(other)
    ends = trail_ends(log.lines)
    assert {ring: number for ring, (number, _) in ends.items()} == {
        AuditRing.CALLS: 3,
        AuditRing.PUBLICATIONS: 3,
    }
    assert "missing" not in str(log.told())


def test_a_full_log_is_asked_again_and_nothing_is_skipped() -> None:
    log, made = Log(), records(3)
    trail = ControlTrail(log)
    log.room = 1
    assert trail.on_record(made[0])
    assert not trail.on_record(made[1])
    log.room = 10
    assert all(trail.on_record(record) for record in made)
    assert log.told() == ["r-1", "r-2", "r-3"]


def test_a_gap_and_a_fork_are_told() -> None:
    log, made = Log(), records(5)
    trail = ControlTrail(log)
    trail.on_record(made[0])
    trail.on_record(made[3])
    trail.on_record(msgspec.structs.replace(made[4], previous=bytes(31) + b"x"))
    assert log.told() == [
        "r-1", "records 2 to 3 are missing", "r-4", "it does not follow the record before it",
        "r-5",
    ]  # fmt: skip


class Store:
    """A control plane's store that holds a piece of the trail."""

    def __init__(self) -> None:
        self.held: dict[Key, KvRecord] = {}

    def fill(self, some: list[AuditRecord]) -> None:
        self.held = {
            each.key(): KvRecord(each.key(), canonical(each), Revision(1), Revision(1), 1, 0)
            for each in some
        }

    def get(self, key: Key) -> KvRecord | None:
        return self.held.get(key)

    def range(self, start: bytes, end: bytes | None, limit: int) -> RecordPage:
        found = [key for key in sorted(self.held) if start <= key < (end or b"\xff")]
        return RecordPage(
            Revision(1), [self.held[key] for key in found[:limit]], len(found) > limit
        )


async def test_a_node_follows_the_trail_over_restarts_and_tells_of_a_gap(tmp_path: Path) -> None:
    store, made = Store(), records(9)
    for held in (made[:3], made[1:5], made[1:5], made[6:]):
        store.fill(held)
        desk = open_desk(tmp_path)
        ControlFollower(lambda: store, desk, tmp_path / AUDIT_DIRECTORY).look()
        await desk.close()
    told = [event.trace_id or event.outcome for event in written(tmp_path)]
    assert told == [
        "r-1", "r-2", "r-3", "r-4", "r-5", "records 6 to 6 are missing", "r-7", "r-8", "r-9",
    ]  # fmt: skip
