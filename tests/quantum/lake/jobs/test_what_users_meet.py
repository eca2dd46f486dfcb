"""Issue 20, items 11 to 13: what the lake's commands say to who meets them first. No JVM here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quantum.archive.types import PrgId
from quantum.broker import OWN_ORIGIN, encode_publishes
from quantum.cli.exits import Exit
from quantum.lake.errors import BadAddress
from quantum.lake.jobs import find_divergences
from quantum.lake.jobs.report import time_span
from quantum.lake.jobs.verify import verify
from quantum.lake.schema import SCHEMA_VERSION
from quantum.lake.table import DirectoryStore, Table
from tests.quantum.lake.jobs.logs import NOON_MS, MemorySource, record
from tests.quantum.lake.jobs.tables import filled
from tests.quantum.lake.jobs.test_commands import INLINE, lines, run, write_story
from tests.quantum.lake.jobs.test_ingest import story
from tests.quantum.lake.log_directory import LogDirectory
from tests.quantum.lake.table.stores import MemoryStore

HOUR = datetime(2026, 11, 15, 20, tzinfo=UTC)


@pytest.fixture(scope="module")
def var(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logs")
    return write_story(root / "var", archive=root / "archive")


# Item 11: a table that lacks messages, a replay that is equal, a plot of an hour.


def test_item_11_verify_says_how_far_a_table_is_behind(tmp_path: Path) -> None:
    var, table = write_story(tmp_path / "var"), tmp_path / "table"
    logs = ["--data", var, "--table", table, *INLINE]
    assert run("ingest", "--once", *logs).exit_code == 0
    with LogDirectory(var, prgs=2) as more:
        more.append(0, [[], []])
    done = run("verify", *logs)
    assert done.exit_code == 0, "entries without a message leave nobody behind"
    with LogDirectory(var, prgs=2) as more:
        more.append(0, [[encode_publishes(NOON_MS, OWN_ORIGIN, 0, 0, [record("t", b"late")])]])
    done = run("verify", *logs)
    assert done.exit_code == Exit.BEHIND
    assert "in the table: equal; behind by 1 messages in 3 entries" in done.stdout
    assert "the table is behind: the log has 1 messages that it lacks" in done.stderr
    assert run("ingest", "--once", *logs).exit_code == 0
    assert run("verify", *logs).exit_code == 0


def test_item_11_an_empty_table_is_not_equal(var: Path, tmp_path: Path) -> None:
    Table.open_or_create(DirectoryStore(tmp_path), schema_version=SCHEMA_VERSION, at_ms=1)
    done = run("verify", "--data", var, "--table", tmp_path, *INLINE)
    assert done.exit_code == Exit.BEHIND
    assert "dev/0: not in the table, which lacks 9 messages in 12 entries" in done.stdout
    assert "the table is empty: the log has 11 messages that it lacks" in done.stderr
    told = lines(run("verify", "--data", var, "--table", tmp_path, "--json", *INLINE))
    assert told[-1]["behind_rows"] == 11


def test_item_11_what_came_later_is_counted_row_by_row() -> None:
    log, store = story()[0], MemoryStore()
    filled(log, store)
    whole = verify(log, store)
    assert (whole.behind_rows, whole.is_empty) == (0, False)
    for payload in (b"one", b"two"):
        log.publish(1, payload)
    behind = verify(log, store)
    assert behind.is_equal and behind.root == whole.root
    assert [(each.behind_entries, each.behind_rows) for each in behind.partitions] == [
        (0, 0),
        (2, 2),
    ]
    filled(log, store)
    assert verify(log, store).behind_rows == 0


def test_item_11_a_partition_that_appeared_later_counts(tmp_path: Path) -> None:
    log, store = story()[0], MemoryStore()
    kept = log.logs.pop(PrgId("dev", 1))
    filled(log, store)
    log.logs[PrgId("dev", 1)] = kept
    verdict = verify(log, store)
    assert [each.is_covered for each in verdict.partitions] == [True, False]
    assert verdict.behind_rows > 0


def test_item_11_a_repeated_verify_waits_for_a_table_that_is_being_filled(
    var: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Table.open_or_create(DirectoryStore(tmp_path), schema_version=SCHEMA_VERSION, at_ms=1)
    looks: list[float] = []

    def pause(seconds: float, _: object) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            done = run("ingest", "--data", var, "--table", tmp_path, "--once", *INLINE)
            assert done.exit_code == 0
        else:
            (tmp_path / "tenant=dev" / "again.parquet").write_bytes(b"planted")

    monkeypatch.setattr("quantum.cli.lake_running._pause", pause)
    done = run("verify", "--data", var, "--table", tmp_path, "--every", "1", *INLINE)
    assert (done.exit_code, len(looks)) == (Exit.QUARANTINED, 2)


def test_item_11_replay_says_equal(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = lines(run("replay", "--data", var, "--json", *INLINE))[-2:]
    live = {row["prg"]: (row["index"], row["digest"]) for row in rows}
    monkeypatch.setattr("quantum.lake.jobs.live.live_digests", lambda _: live)
    monkeypatch.setattr("quantum.cli.lake_comparing.where_of", lambda *_: str(var))
    asked = ["replay", "--cluster", "127.0.0.1:1", "--live", *INLINE]
    done = run(*asked)
    assert done.stdout.splitlines()[-1] == "equal: 2 partitions are as the running cluster has them"
    assert lines(run(*asked, "--json"))[-1]["equal"] is True
    live["dev/1"] = (live["dev/1"][0], "00" * 16)
    assert "equal:" not in run(*asked).stdout
    done = run("replay", "--data", var, "--against", var, *INLINE)
    assert "equal: no partition differs from" in done.stdout


def test_item_11_two_copies_with_nothing_in_common_are_not_equal() -> None:
    ours, theirs = MemorySource(), MemorySource()
    ours.logs, theirs.logs = {PrgId("a", 0): []}, {PrgId("b", 0): []}
    with pytest.raises(BadAddress, match="no partition in common"):
        find_divergences(ours, theirs)


@pytest.mark.parametrize("hours", [1, 2, 48])
def test_item_11_an_axis_spans_the_data(hours: int) -> None:
    first, last = time_span([HOUR + timedelta(hours=nth) for nth in range(hours)])
    assert timedelta(hours=hours) <= last - first <= timedelta(hours=hours, minutes=5)
    assert first <= HOUR
