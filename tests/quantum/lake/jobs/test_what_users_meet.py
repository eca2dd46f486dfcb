"""Issue 20, items 11 to 13: what the lake's commands say to who meets them first. No JVM here."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from clustor.runtime.keys.store import KEK_FILE, KEYRING_FILE, create_keyring
from quantum.archive.types import PrgId
from quantum.broker import OWN_ORIGIN, encode_publishes
from quantum.cli.exits import Exit
from quantum.cli.lake_options import LogOptions
from quantum.cli.lake_running import checked_logs
from quantum.lake.errors import BadAddress, WrongKey
from quantum.lake.jobs import View, find_divergences, read_views
from quantum.lake.jobs.checking import PATIENCE_SECONDS, TIMEOUT_SECONDS
from quantum.lake.jobs.choosing import INLINE_BYTES_MAX, choose, log_bytes
from quantum.lake.jobs.measuring import measure_topics, percentile
from quantum.lake.jobs.report import time_span
from quantum.lake.jobs.sources import open_logs
from quantum.lake.jobs.verify import verify
from quantum.lake.options import keys_named, parse_options
from quantum.lake.planner import OnGap
from quantum.lake.refusals import BadOption
from quantum.lake.schema import NAMES, SCHEMA_VERSION
from quantum.lake.session import logging_of
from quantum.lake.source import QuantumReader, QuantumStreamReader
from quantum.lake.table import DirectoryStore, Table
from tests.clustor.runtime.waiting import free_ports
from tests.interop.machine import slowness
from tests.interop.test_lake_connect import audited_node
from tests.quantum.lake.jobs.logs import NOON_MS, MemorySource, record
from tests.quantum.lake.jobs.tables import filled, rows
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


def test_item_11_a_partition_that_appeared_later_counts() -> None:
    log, store = story()[0], MemoryStore()
    kept = log.logs.pop(PrgId("dev", 1))
    filled(log, store)
    root = verify(log, store).root
    log.logs[PrgId("dev", 1)] = kept
    verdict = verify(log, store)
    assert verdict.root == root, "of what was compared"
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
    replayed = lines(run("replay", "--data", var, "--json", *INLINE))[-2:]
    live = {row["prg"]: (row["index"], row["digest"]) for row in replayed}
    monkeypatch.setattr("quantum.lake.jobs.live.live_digests", lambda _: live)
    monkeypatch.setattr("quantum.cli.lake_options.where_of", lambda *_: str(var))
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


# Item 12: keys and brokers are checked before Spark starts, in one sentence.


def is_at_once(seconds: float) -> bool:
    """Say whether nobody waited: two seconds, more on a machine that is busy or stood still."""
    return seconds < 2 or seconds < 10 * slowness()


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("quantum.lake.session.spark_session", refuse)


@pytest.mark.parametrize("master", ["auto", "local[1]", "inline"])
@pytest.mark.parametrize("place", ["data", "archive"])
@pytest.mark.usefixtures("no_spark")
def test_item_12_wrong_keys_are_named_before_spark_starts(
    place: str, master: str, var: Path, tmp_path: Path
) -> None:
    """A directory without keys, another cluster's, and a key that opens another ring."""
    create_keyring(tmp_path / "other")
    (tmp_path / "mixed").mkdir()
    shutil.copy(var / "keys" / KEYRING_FILE, tmp_path / "mixed")
    shutil.copy(tmp_path / "other" / "keys" / KEK_FILE, tmp_path / "mixed")
    logs = ["--data", var] if place == "data" else ["--archive", var.parent / "archive"]
    for keys in ("nothing", "other", "mixed"):
        where = [*logs, "--keys", tmp_path / keys, "--master", master]
        begun = time.monotonic()
        done = run("ingest", *where, "--table", tmp_path / "table", "--once")
        assert done.exit_code == Exit.WRONG_KEY, done.output
        said = " ".join(done.stderr.split())
        assert "wanted=" in said and "given=" in said and "prg=dev/0" in said, said
        assert len(done.stderr.splitlines()) == 1
        assert is_at_once(time.monotonic() - begun)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("job", ["verify", "replay", "ingest"])
@pytest.mark.usefixtures("no_spark")
def test_item_12_a_broker_that_is_not_there_is_missed_at_once(job: str, tmp_path: Path) -> None:
    """By every job that reads logs; `--every` and a continuous ingest wait for it instead."""
    (port,) = free_ports(1)
    create_keyring(tmp_path)
    table = [] if job == "replay" else ["--table", tmp_path / "table"]
    once = ["--once"] if job == "ingest" else []
    begun = time.monotonic()
    done = run(job, "--cluster", f"127.0.0.1:{port}", "--keys", tmp_path, *table, *once)
    assert done.exit_code == Exit.UNREACHABLE, done.output
    assert "is the broker running" in done.stderr and str(port) in done.stderr
    assert is_at_once(time.monotonic() - begun)
    assert PATIENCE_SECONDS + TIMEOUT_SECONDS < 2


def test_item_12_who_waits_is_told_that_the_broker_is_missed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    logs = LogOptions(cluster=f"127.0.0.1:{port}", keys=str(tmp_path))
    where, source = checked_logs(logs, waits=True)
    assert (where, source) == (f"cluster:127.0.0.1:{port}", None)


def test_item_12_a_plain_path_is_a_directory_of_keys(var: Path, tmp_path: Path) -> None:
    archive = ["--archive", var.parent / "archive", "--table", tmp_path / "table"]
    for keys in (var, var / "keys", var / "keys" / KEYRING_FILE, f"directory:{var}"):
        done = run("ingest", *archive, "--keys", keys, "--once", *INLINE)
        assert done.exit_code == 0, done.output
    done = run("ingest", *archive, "--keys", "vra", "--once", *INLINE)
    assert done.exit_code == Exit.USAGE
    assert "option keys is a path (./PATH)" in done.stderr


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("/srv/keys", "directory:/srv/keys"),
        ("./var", "directory:./var"),
        ("~/keys", "directory:~/keys"),
        ("var/keys", "directory:var/keys"),
        ("/home/someone/with/a/very/long/path/without/dots", None),
        ("directory", "directory"),
        ("env:LAKE", "env:LAKE"),
    ],
)
def test_item_12_names_of_keys(given: str, named: str | None) -> None:
    assert keys_named(given) == (named or f"directory:{given}")


@pytest.mark.parametrize("secret", ["ab" * 32, "/" + "Q" * 42 + "=", "a/" + "Q" * 41, '{"a/b"'])
def test_item_12_what_may_be_a_key_is_no_path(secret: str) -> None:
    with pytest.raises(BadOption) as caught:
        keys_named(secret)
    assert secret not in str(caught.value)


def test_item_12_spark_gets_one_sentence_and_no_chain_of_causes(var: Path, tmp_path: Path) -> None:
    """What a worker raises is printed by Spark as it is, with all that led to it."""
    create_keyring(tmp_path)
    options = parse_options({"path": str(var), "keys": str(tmp_path)})
    stream = QuantumStreamReader(options, NAMES)
    for asked in (QuantumReader(options, NAMES).partitions, stream.initialOffset):
        with pytest.raises(WrongKey) as caught:
            asked()
        printed = traceback.format_exception(caught.value)
        assert len(printed) == 4, "the head, this test, the reader, and the sentence"
        assert "wanted=key" in printed[-1] and "given=key" in printed[-1]


def test_item_12_spark_logs_a_line_for_an_error() -> None:
    assert "alwaysWriteExceptions = false" in logging_of("ERROR")
    assert "%replace{%m}{(?ms)$.*}{}%n" in logging_of("ERROR")
    assert "alwaysWriteExceptions = true" in logging_of("INFO") and ": %m%n" in logging_of("INFO")


# Item 13: views say what they mean, small jobs need no Spark, and all tell how far they are.

VIEW = '[[view]]\nname = "a"\ntopics = "t"\nformat = "json"\n'
FIELDS = '[view.fields]\nx = "long"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (VIEW.replace("[[view]]", "[[views]]"), "unknown=views"),
        ('title = "x"\n' + VIEW + FIELDS, "unknown=title"),
        (VIEW + 'topic = "t"\n' + FIELDS, "view=a, unknown=topic"),
        (VIEW + 'schema = "x.avsc"\n' + FIELDS, "has no schema"),
        ("", "one or more [[view]] tables"),
        ("view = 1\n", "one or more [[view]] tables"),
        (VIEW + FIELDS.replace("long", "int"), "cannot be"),
    ],
)
def test_item_13_views_with_unknown_keys_are_refused_by_name(
    text: str, sentence: str, var: Path, tmp_path: Path
) -> None:
    (tmp_path / "views.toml").write_text(text)
    views = ["--views", tmp_path / "views.toml", "--table", tmp_path / "table"]
    done = run("ingest", "--data", var, *views, "--once")
    assert done.exit_code == Exit.FAILED
    assert sentence in " ".join(done.stderr.split())
    assert not (tmp_path / "table").exists()


def test_item_13_the_example_of_the_page_is_a_view(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "lake.md").read_text()
    text = page.split("```toml\n")[1].split("```")[0]
    (tmp_path / "views.toml").write_text(text)
    (tmp_path / "reading.avsc").write_text(
        '{"type": "record", "name": "r", "fields": [{"name": "x", "type": "long"}]}'
    )
    views = read_views(tmp_path / "views.toml")
    assert {view.format for view in views} == {"json", "avro"}
    for name in View.__struct_fields__:
        assert f"`{name}`" in page, name


@pytest.mark.parametrize(
    ("asked", "is_inline", "master"),
    [
        ({"master": "auto", "size_bytes": 0}, True, None),
        ({"master": "auto", "size_bytes": INLINE_BYTES_MAX}, True, None),
        ({"master": "auto", "size_bytes": INLINE_BYTES_MAX + 1}, False, None),
        ({"master": "auto", "size_bytes": None}, False, None),
        ({"master": "auto", "size_bytes": 1, "is_remote": True}, False, None),
        ({"master": "auto", "size_bytes": 1, "is_set": True}, False, None),
        ({"master": "inline", "size_bytes": 1 << 50}, True, None),
        ({"master": "local[2]", "size_bytes": 1}, False, "local[2]"),
    ],
)
def test_item_13_size_decides_who_works(
    asked: dict[str, Any], is_inline: bool, master: str | None
) -> None:
    choice = choose(**asked)
    assert (choice.is_inline, choice.master) == (is_inline, master)
    chose_by_size = asked["master"] == "auto" and len(asked) == 2
    assert bool(choice.sentence) == chose_by_size


@pytest.mark.usefixtures("no_spark")
def test_item_13_every_job_runs_in_this_process_and_says_so(var: Path, tmp_path: Path) -> None:
    node = audited_node(tmp_path / "node")
    logs, table = ["--data", var], ["--table", tmp_path / "table"]
    jobs: dict[str, list[Any]] = {
        "ingest": [*logs, *table, "--once"],
        "verify": [*logs, *table],
        "replay": logs,
        "compact": [*table, "--files-min", "2"],
        "usage": [*table, "--out", tmp_path / "usage"],
        "audit": [node],
        "simulate": ["--sessions", "2000", "--prgs", "8", "--grown-prgs", "9", "--nodes", "3"],
        "report": [*table, "--out", tmp_path / "page.html"],
    }
    for name, arguments in jobs.items():
        quiet = run(name, *arguments)
        assert quiet.exit_code == 0, quiet.output
        (chosen,) = quiet.stderr.splitlines()
        assert chosen.startswith(f"{name}: ") and "MiB to read: in this process" in chosen
        loud = run(name, *arguments, "--progress")
        told = loud.stderr.splitlines()[1:]
        if name not in ("ingest", "compact"):  # they have nothing left to do
            assert told and all(line.startswith(f"{name}: ") for line in told), loud.output
    assert "<svg" in (tmp_path / "page.html").read_text()
    counted = pq.read_table(tmp_path / "usage")
    assert sum(counted.column("messages").to_pylist()) == 11


@pytest.mark.usefixtures("no_spark")
def test_item_13_ingest_and_compact_tell_how_far_they_are(var: Path, tmp_path: Path) -> None:
    table = ["--table", tmp_path / "table", "--progress", *INLINE]
    done = run("ingest", "--data", var, "--once", "--batch-bytes", "300", *table)
    told = done.stderr.splitlines()
    assert "ingest: 1 of 1 tasks are done" in told or "ingest: 2 of 2 tasks are done" in told
    commits = [line for line in told if line.startswith("ingest: version ")]
    assert len(commits) > 1, "each commit has its line"
    done = run("compact", "--files-min", "2", *table)
    assert any(" files became " in line for line in done.stderr.splitlines()), done.output


@pytest.mark.usefixtures("no_spark")
def test_item_13_progress_is_on_standard_error_as_json_too(var: Path) -> None:
    done = run("replay", "--data", var, "--progress", "--json", *INLINE)
    steps = [json.loads(line) for line in done.stderr.splitlines()]
    assert steps[-1]["step"] == "2 of 2 partitions replayed"
    assert all("digest" in row for row in lines(done))


def test_item_13_the_size_of_a_log_is_what_lies_behind_the_table(var: Path) -> None:
    source = open_logs(str(var))
    ends = {prg: source.bounds(prg).last for prg in source.prgs()}
    assert log_bytes(source) > log_bytes(source, ends) == 0


@pytest.mark.parametrize(
    ("count", "percent", "wanted"),
    [(1, 99, 1), (2, 50, 1), (3, 50, 2), (100, 99, 99), (101, 99, 100)],
)
def test_item_13_percentiles(count: int, percent: int, wanted: int) -> None:
    assert percentile(list(range(1, count + 1)), percent) == wanted


def test_item_13_what_nobody_published_is_not_counted() -> None:
    log, store = story()[0], MemoryStore()
    log.bases[PrgId("dev", 1)] = 1
    filled(log, store, on_gap=OnGap.ROW, loose=True)
    kinds = [row["row_kind"] for row in rows(store)]
    counted = sum(row["messages"] for row in measure_topics(store))
    assert counted == len(kinds) - 1 == len([kind for kind in kinds if kind != "gap"])


def test_item_13_limits_are_judged_here(var: Path, tmp_path: Path) -> None:
    table = ["--table", tmp_path / "table"]
    assert run("ingest", "--data", var, *table, "--once", *INLINE).exit_code == 0
    (tmp_path / "limits.toml").write_text("[dev]\nmessages = 3\nsessions = 99\n")
    done = run("usage", *table, "--limits", tmp_path / "limits.toml", "--json", *INLINE)
    assert done.exit_code == Exit.CONFLICT
    beyond = [row for row in lines(done) if "allowed" in row]
    assert beyond and {row["resource"] for row in beyond} == {"messages"}
    assert all(row["used"] > row["allowed"] == 3 for row in beyond)
