"""A node's audit log in an archive: stores that fail, uploads that die, commands that verify."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clustor.runtime.audit.keys import open_audit_keys
from clustor.runtime.audit.writer import AUDIT_DIRECTORY, AuditWriter, WriterLimits
from clustor.runtime.disk import DirectoryStorage
from clustor.security import AuditReader, AuditTruncated
from quantum.archive import (
    ArchivedLog,
    ArchiveForeign,
    ArchiveUnreachable,
    AuditExporter,
    archived_lines,
    archived_logs,
    archived_prgs,
    forget_export,
    object_names,
    read_mark,
)
from quantum.archive.objects import DirectoryObjects
from quantum.cli.audit import app
from quantum.node.audit_lane import AuditLane
from tests.clustor.security.audit_logs import event

LIMITS = WriterLimits(seal_seconds=60)


class Store(DirectoryObjects):
    """A store whose answers can be lost, before or after it did what it was asked."""

    loses: str = ""

    def create(self, name: str, data: bytes) -> bool:
        if self.loses == "before":
            raise ArchiveUnreachable("the store is away")
        made = super().create(name, data)
        if self.loses == "after":
            raise ArchiveUnreachable("the answer was lost")
        return made


class Bench:
    """One node's directory and one archive."""

    def __init__(self, root: Path) -> None:
        self.node = root / "node-1"
        self.directory = self.node / AUDIT_DIRECTORY
        self.url = (root / "archive").as_uri()
        self.objects = Store(root / "archive")

    def write(self, events: int = 3) -> None:
        """Start the log's writer, record, and stop: everything is sealed."""
        asyncio.run(self._write(events))

    async def _write(self, events: int) -> None:
        keys = open_audit_keys(self.node / "keys", 0)
        writer = AuditWriter(self.directory, keys.signer, limits=LIMITS)
        for number in range(events):
            await writer.record(event(number))
        await writer.close()

    def exporter(self) -> AuditExporter:
        return AuditExporter(self.objects, self.url, self.directory, 1)

    def on_disk(self) -> list[bytes]:
        storage = DirectoryStorage(self.directory)
        try:
            return list(AuditReader(storage).lines())
        finally:
            storage.close()

    @property
    def log(self) -> ArchivedLog:
        (log,) = archived_logs(self.objects)
        return log

    def archived(self) -> list[bytes]:
        return list(archived_lines(self.objects, self.log))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.write()
    return made


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def series(lane: AuditLane) -> list[float]:
    return [value for family in lane.families() if family for _, value in family.series]


def exported(bench: Bench) -> AuditExporter:
    exporter = bench.exporter()
    while exporter.step():
        pass
    return exporter


def test_every_line_is_there_once_over_restarts_of_log_and_exporter(bench: Bench) -> None:
    for _ in range(3):
        exported(bench)
        assert bench.archived() == bench.on_disk()
        bench.write()
    last = exported(bench)
    assert bench.archived() == bench.on_disk()
    assert not last.step() and last.through == len(bench.on_disk())
    assert archived_prgs(bench.objects) == [], "it is no tenant's"


@pytest.mark.parametrize("loses", ["before", "after"])
def test_a_lost_answer_makes_neither_a_gap_nor_a_second_copy(bench: Bench, loses: str) -> None:
    exporter = bench.exporter()
    bench.objects.loses = loses
    with pytest.raises(ArchiveUnreachable):
        exporter.step()
    bench.objects.loses = ""
    bench.write()  # the next run would be a longer one under the same name
    while exporter.step():
        pass
    assert bench.archived() == bench.on_disk()
    assert len(object_names(bench.objects, bench.log)) == (2 if loses == "after" else 1)


def test_a_dead_process_s_upload_that_arrives_late_is_taken_as_it_is(bench: Bench) -> None:
    late, successor = bench.exporter(), bench.exporter()
    bench.objects.loses = "before"
    for each in (late, successor):
        with pytest.raises(ArchiveUnreachable):
            each.step()
    bench.objects.loses = ""
    assert late.step()
    bench.write()
    while successor.step():
        pass
    assert bench.archived() == bench.on_disk()


def test_another_history_in_the_archive_is_left_alone(bench: Bench) -> None:
    exporter = bench.exporter()
    bench.objects.loses = "before"
    with pytest.raises(ArchiveUnreachable):
        exporter.step()
    name = ArchivedLog(1, json.loads((bench.directory / "anchor.json").read_text())["log_id"])
    DirectoryObjects(bench.directory.parents[2] / "archive").create(name.object_name(1), b"{}\n")
    bench.objects.loses = ""
    with pytest.raises(ArchiveForeign):
        exporter.step()


def test_a_log_put_back_is_told_and_the_archive_stays(bench: Bench) -> None:
    saved = {path: path.read_bytes() for path in bench.directory.iterdir() if path.is_file()}
    bench.write()
    exported(bench)
    whole = bench.archived()
    for path in bench.directory.glob("audit-*"):
        path.unlink()
    for path, data in saved.items():
        path.write_bytes(data)
    lane = AuditLane(bench.exporter(), flush_seconds=60, clock=lambda: 0.0)
    assert not lane.turn()
    assert lane.status()["state"] == "stopped"
    with pytest.raises(AuditTruncated):
        bench.exporter().step()
    assert bench.archived() == whole


def test_a_lane_waits_retries_and_goes_on(bench: Bench) -> None:
    now = [100.0]
    lane = AuditLane(bench.exporter(), flush_seconds=60, clock=lambda: now[0])
    bench.objects.loses = "before"
    assert not lane.turn()
    assert lane.status()["state"] == "retrying" and "away" in lane.status()["reason"]
    assert series(lane) == [0, 1]
    bench.objects.loses = ""
    assert not lane.turn(), "not yet"
    now[0] += 1
    assert lane.turn() and not lane.turn()
    assert lane.status() == {
        "state": "up to date",
        "reason": "",
        "exported_sequence": len(bench.on_disk()),
    }
    assert series(lane) == [len(bench.on_disk()), 0]
    bench.write()
    now[0] += 59
    assert not lane.turn() and len(bench.archived()) < len(bench.on_disk())
    now[0] += 1
    assert lane.turn() and bench.archived() == bench.on_disk()


def test_one_command_verifies_an_archive_and_finds_what_was_done_to_it(bench: Bench) -> None:
    exported(bench)
    bench.write()
    exported(bench)
    cluster = bench.node.parent
    good = run("verify", bench.url, "--keys", cluster, "--json")
    found = json.loads(good.output)
    assert good.exit_code == 0 and found["intact"] and found["events"] == 6, good.output
    assert found["objects"] == 2 and found["node"] == 1
    keys = bench.node / "keys" / "audit-keys.json"
    for trusted in (keys, bench.node):
        assert run("verify", bench.url, "--keys", trusted).exit_code == 0
    assert run("verify", bench.url, "--keys", keys, "--expect-head", found["head"]).exit_code == 0
    assert run("verify", bench.url, "--keys", keys, "--expect-head", "0" * 63).exit_code == 6
    assert run("verify", bench.url).exit_code == 2
    assert len(run("show", bench.url, "--json").output.splitlines()) == 6
    newest = cluster / "archive" / object_names(bench.objects, bench.log)[-1]
    data = newest.read_bytes()
    newest.write_bytes(data.replace(b'"tenant":"acme"', b'"tenant":"acne"', 1))
    assert run("verify", bench.url, "--keys", keys).exit_code == 6
    newest.write_bytes(data[: data.rindex(b"\n", 0, -1) + 1])  # without its seal
    assert run("verify", bench.url, "--keys", keys).exit_code == 1
    newest.unlink()
    assert run("verify", bench.url, "--keys", keys).exit_code == 0, "a chain knows its past"
    lost = run("verify", bench.url, "--keys", cluster)
    assert lost.exit_code == 6 and "truncated" in lost.output, "the node remembers more"


def test_a_key_of_another_node_does_not_count(bench: Bench) -> None:
    exported(bench)
    other = bench.node.parent / "elsewhere"
    open_audit_keys(other / "keys", 0)
    assert run("verify", bench.url, "--keys", other).exit_code == 4
    assert run("verify", bench.url, "--keys", other / "none").exit_code == 4
    assert run("verify", (bench.node.parent / "no").as_uri(), "--keys", other).exit_code == 3


def test_nothing_is_trimmed_before_it_is_in_the_archive(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write()
    bench.write()
    files = sorted(path.name for path in bench.directory.glob("audit-*.jsonl"))
    whole = bench.on_disk()

    def trimmed(*more: str) -> list[str]:
        result = run("trim", bench.node, "--json", *more)
        assert result.exit_code == 0, result.output
        names: list[str] = json.loads(result.output)["files"]
        return names

    assert trimmed() == [], "it is young"
    monkeypatch.setattr("quantum.cli.audit_trim.wall_clock_ms", lambda: 10**15)
    assert trimmed("--dry-run") == files[:-1], "no archive, no reason to stay"
    exporter = bench.exporter()
    assert trimmed() == [], "an archive that has nothing yet"
    while exporter.step():
        pass
    assert trimmed() == files[:-1]
    bench.write()
    assert exported(bench).missed is None
    assert bench.archived()[: len(whole)] == whole
    assert run("verify", bench.node, "--expired").exit_code == 0
    assert run("verify", bench.url, "--keys", bench.node).exit_code == 0
    for _ in range(2):
        bench.write()
    assert trimmed() == ["audit-0000000003.jsonl", "audit-0000000004.jsonl"], (
        "the rest is not there"
    )
    forget_export(bench.directory)
    assert read_mark(bench.directory) is None
    assert run("trim", bench.node, "--days", "399").exit_code == 2
    assert run("trim", bench.node / "none").exit_code == 3


def test_a_mark_that_cannot_be_read_lets_nothing_go(bench: Bench) -> None:
    bench.exporter()
    (bench.directory / "exported.json").write_text("{}")
    assert run("trim", bench.node).exit_code == 6
