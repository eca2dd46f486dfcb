"""A node's audit desk: acts are lines, storms are numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustor.runtime.audit.keys import load_trusted
from clustor.runtime.audit.log import open_desk
from clustor.runtime.audit.record_once import command_event, record_now
from clustor.runtime.audit.writer import AUDIT_DIRECTORY
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.errors import AuditFailed, DataDirectoryRefused
from clustor.security import (
    AuditReader,
    EventLine,
    decode_line,
    file_name,
    read_anchor,
    verify_lines,
)


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


async def test_a_node_whose_log_was_cut_does_not_start(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    desk.node_did("NodeStarted", 1)
    await desk.close()
    (tmp_path / AUDIT_DIRECTORY / file_name(1)).write_bytes(b"")
    with pytest.raises(DataDirectoryRefused, match="ends before its anchor"):
        open_desk(tmp_path)


def test_commands_add_to_one_log(tmp_path: Path) -> None:
    for number in range(3):
        record_now(tmp_path, [command_event("KeyRotated", "Done", f"{number}", {"a": "b"})])
    assert [event.object for event in written(tmp_path)] == ["0", "1", "2"]
    assert written(tmp_path)[0].who.startswith("local:")
