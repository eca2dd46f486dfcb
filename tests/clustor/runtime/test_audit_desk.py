"""A node's audit desk: acts are lines, storms are numbers, control calls keep their record."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustor.control.audit import AuditRecord, Ring
from clustor.control.types import Role
from clustor.runtime.audit_desk import event_of_record, open_desk
from clustor.runtime.audit_keys import load_trusted
from clustor.runtime.audit_once import command_event, record_now
from clustor.runtime.audit_writer import AUDIT_DIRECTORY
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.errors import AuditFailed
from clustor.security import AuditReader, EventLine, decode_line, read_anchor, verify_lines


def written(root: Path) -> list[EventLine]:
    storage = DirectoryStorage(root / AUDIT_DIRECTORY)
    lines = list(AuditReader(storage).lines())
    trusted = load_trusted(root / "keys" / "audit-keys.json")
    verdict = verify_lines(lines, trusted, anchor=read_anchor(storage), require_signed=True)
    storage.close()
    assert verdict.is_intact, verdict.fault
    decoded = (decode_line(line) for line in lines)
    return [line for line in decoded if isinstance(line, EventLine)]


async def test_refusals_by_the_thousand_are_six_lines(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    for number in range(1_000):
        desk.refused("ConnectRefused", who=f"lamp-{number}", why="not authenticated")
    assert desk.refusals == {"ConnectRefused": 1_000}
    await desk.close()
    events = written(tmp_path)
    assert len(events) == 6
    assert events[-1].facts["suppressed"] == "995"


async def test_two_processes_never_write_one_log(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    with pytest.raises(AuditFailed, match="another process"):
        open_desk(tmp_path)
    await desk.close()
    await open_desk(tmp_path).close()


def test_commands_add_to_one_log(tmp_path: Path) -> None:
    for number in range(3):
        record_now(tmp_path, [command_event("KeyRotated", "Done", f"{number}", {"a": "b"})])
    assert [event.object for event in written(tmp_path)] == ["0", "1", "2"]
    assert written(tmp_path)[0].who.startswith("local:")


async def test_a_control_call_is_told_with_its_record(tmp_path: Path) -> None:
    record = AuditRecord(
        ring=Ring.CALLS,
        sequence=7,
        at=123,
        identity="spiffe://dev/operator/ann",
        roles=(Role.OPERATOR,),
        break_glass=None,
        kind="RegisterNode",
        request_id="r-1",
        command_sha256=bytes(32),
        outcome="Done",
        touched=("node/4", "placement/1"),
        answer=b"secret",
        previous=bytes(32),
    )
    desk = open_desk(tmp_path)
    await desk.record(event_of_record(record))
    await desk.close()
    (event,) = written(tmp_path)
    assert (event.who, event.what, event.outcome) == (record.identity, "RegisterNode", "Done")
    assert (event.object, event.trace_id, event.at_ms) == ("node/4 placement/1", "r-1", 123)
    assert event.facts["sequence"] == "7" and "secret" not in str(event)
