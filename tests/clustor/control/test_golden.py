"""The bytes of the log and of the state they lead to: a change to either parts old from new.

python -m tests.clustor.control.test_golden    writes them anew
"""

from __future__ import annotations

from pathlib import Path

from clustor.control import AuditRecord, canonical, decode_answer, scan
from clustor.control.commands import decode_command
from clustor.control.draft import scan_records
from tests.clustor.control.plane import OPERATOR, Plane, settled_plane
from tests.clustor.control.samples import SAMPLES

GOLDEN = Path(__file__).parent / "golden"
COMMANDS, STATE = GOLDEN / "commands.jsonl", GOLDEN / "state.txt"


def commands() -> str:
    return "".join(canonical(SAMPLES[name]).decode() + "\n" for name in sorted(SAMPLES))


def played() -> Plane:
    """Play every sample as the operator: some are done, some refused."""
    plane = settled_plane()
    for name in sorted(SAMPLES):
        plane.call(SAMPLES[name], by=OPERATOR)
    return plane


def state() -> str:
    plane = played()
    lines = [f"digest {plane.machine.digest().hex()}"]
    for record in scan_records(plane.machine.kv, b""):
        if not record.key.startswith(b"audit/"):
            lines.append(f"{record.key.decode()} {record.value.decode()}")
    for audit in scan(plane.machine.kv, AuditRecord):
        lines.append(f"{audit.key().decode()} {audit.kind} {audit.outcome}")
    return "\n".join(lines) + "\n"


def test_commands_have_the_bytes_that_they_had() -> None:
    assert commands() == COMMANDS.read_text()


def test_old_bytes_are_still_the_same_commands() -> None:
    lines = COMMANDS.read_text().splitlines()
    found = [decode_command(line.encode()) for line in lines]
    assert found == [SAMPLES[name] for name in sorted(SAMPLES)]


def test_they_lead_to_the_state_that_they_led_to() -> None:
    assert state() == STATE.read_text()


def test_answers_can_be_read_back() -> None:
    for record in scan(played().machine.kv, AuditRecord):
        assert canonical(decode_answer(record.answer)) == record.answer


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    COMMANDS.write_text(commands())
    STATE.write_text(state())
