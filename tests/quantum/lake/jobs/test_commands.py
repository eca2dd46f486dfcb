"""`quantum lake`: words and exit codes, on a real broker's directory, without a JVM."""

from __future__ import annotations

import json
import zipfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from clustor.log.types import EntryKind
from clustor.replica import decode_batch
from clustor.runtime.keys.store import create_keyring
from quantum.archive.types import PrgId
from quantum.broker import OWN_ORIGIN, encode_publishes
from quantum.cli import lake
from quantum.cli.exits import Exit
from quantum.cli.lake import app
from quantum.cli.lake_options import AgainOptions, where_of
from quantum.cli.lake_running import repeat
from quantum.lake.archive import DirectoryKeys
from quantum.lake.errors import SourceUnreachable
from quantum.lake.jobs import mirrors
from quantum.lake.jobs.runner import cause_of
from quantum.lake.opening import open_source
from quantum.lake.table import DirectoryStore, FileKind, Table
from tests.quantum.lake.jobs.logs import NOON_MS, TENANT, record
from tests.quantum.lake.jobs.test_ingest import story
from tests.quantum.lake.log_directory import LogDirectory

INLINE = ["--master", "inline"]


def write_story(root: Path, *, forged_at: int | None = None, archive: Path | None = None) -> Path:
    """Write the logs of `story`; with `forged_at` another message at an index of the first."""
    log, _ = story()
    with LogDirectory(root, prgs=2) as logs:
        for number in (0, 1):
            entries = log.logs[PrgId(TENANT, number)]
            batches = [
                decode_batch(entry.payload) if entry.kind is EntryKind.DATA else []
                for entry in entries
            ]
            if number == 0 and forged_at is not None:
                other = encode_publishes(NOON_MS, OWN_ORIGIN, 0, 0, [record("t", b"other")])
                batches[forged_at - 1] = [other]
            logs.append(number, batches)
            if archive is not None:
                logs.archive(number, archive.as_uri())
    return root


@pytest.fixture(scope="module")
def var(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_story(tmp_path_factory.mktemp("logs") / "var")


@pytest.fixture
def table(var: Path, tmp_path: Path) -> Path:
    done = run("ingest", "--data", var, "--table", tmp_path / "table", "--once", *INLINE)
    assert done.exit_code == 0, done.output
    assert "11 rows in 1 commits" in done.stdout
    return tmp_path / "table"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_ingest_again_adds_nothing(var: Path, table: Path) -> None:
    again = run("ingest", "--data", var, "--table", table, "--once", "--json", *INLINE)
    assert lines(again)[-1]["rows"] == 0
    assert lines(again)[-1]["offsets"] == {"dev/0": 12, "dev/1": 2}


def test_the_cause_of_a_task_that_failed_is_a_line_of_its_own() -> None:
    said = "An error:\n  File x\nSyntaxError: invalid syntax\n SQLSTATE: 38000\n\tat o.a\n"
    assert cause_of(said) == "SyntaxError: invalid syntax"
    assert cause_of("") == ""


def test_formats_that_cannot_be_are_refused_before_anything_is_written(
    var: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "find_spec", lambda _: None)
    for name, code, sentence in (
        ("iceberg", Exit.FAILED, "Iceberg tables need the package pyiceberg (extra=iceberg)"),
        ("delta", Exit.FAILED, "Delta tables need the package deltalake (extra=delta)"),
        ("orc", Exit.USAGE, "a format is one of delta, iceberg (format=orc)"),
    ):
        arguments = ["--table", tmp_path / "table", "--once", "--format", name, *INLINE]
        done = run("ingest", "--data", var, *arguments)
        assert done.exit_code == code
        assert done.stderr.split() == f"quantum: {sentence}".split()
    assert not (tmp_path / "table").exists()


@pytest.mark.skipif(not find_spec("pyiceberg"), reason="the package is not installed")
def test_ingest_keeps_an_iceberg_log(var: Path, tmp_path: Path) -> None:
    arguments = ["--table", tmp_path / "table", "--once", "--format", "iceberg", *INLINE]
    for _ in range(2):
        done = run("ingest", "--data", var, *arguments)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "table" / "_iceberg" / "metadata" / "v3.metadata.json").is_file()


def test_ingest_with_views_and_delta(var: Path, tmp_path: Path) -> None:
    views = tmp_path / "views.toml"
    views.write_text(
        '[[view]]\nname = "all"\ntopics = "t"\nformat = "json"\n[view.fields]\nx = "long"\n'
    )
    table = tmp_path / "table"
    arguments = ["--table", table, "--once", "--views", views, "--delta", "--json", *INLINE]
    done = run("ingest", "--data", var, *arguments)
    assert done.exit_code == 0, done.output
    assert lines(done)[-1]["dead"] == 8
    assert (table / "_delta_log").is_dir()


def test_verify_says_yes_and_no(var: Path, table: Path) -> None:
    done = run("verify", "--data", var, "--table", table, *INLINE)
    assert done.exit_code == 0, done.output
    assert "Merkle root" in done.stdout
    file = Table.open(DirectoryStore(table)).state.of_kind(FileKind.ROWS)[0]
    rows = pq.read_table(table / file.path).slice(1)
    (table / file.path).unlink()
    pq.write_table(rows, table / file.path)
    done = run("verify", "--data", var, "--table", table, *INLINE)
    assert done.exit_code == 6
    assert "missing: dev/0 at 1.0" in done.stdout
    done = run("verify", "--data", var, "--table", table, "--json", *INLINE)
    assert lines(done)[-1]["equal"] is False


def test_replay_prints_digests_and_names_a_divergence(var: Path, tmp_path: Path) -> None:
    log, _ = story()
    done = run("replay", "--data", var, "--json", *INLINE)
    rows = [row for row in lines(done) if "digest" in row]
    assert [row["digest"] for row in rows] == [log.machine(n).digest().hex() for n in (0, 1)]
    earlier = run("replay", "--data", var, "--to", "1", "--json", *INLINE)
    digests = [row["digest"] for row in lines(earlier) if "digest" in row]
    assert digests == [log.machine(n, 1).digest().hex() for n in (0, 1)]
    other = write_story(tmp_path / "other", forged_at=7)
    done = run("replay", "--data", var, "--against", other, *INLINE)
    assert done.exit_code == 6
    assert "dev/0 diverges at index 7" in done.output


def test_replay_writes_the_state_as_tables(var: Path, tmp_path: Path) -> None:
    done = run("replay", "--data", var, "--state", tmp_path / "state", *INLINE)
    assert done.exit_code == 0, done.output
    sessions = pq.read_table(tmp_path / "state" / "sessions").to_pylist()
    assert [row["client_id"] for row in sessions] == ["lasting"]
    assert sessions[0]["unreleased"] == 2
    assert pq.read_table(tmp_path / "state" / "queues").num_rows == 0
    again = run("replay", "--data", var, "--state", tmp_path / "state", *INLINE)
    assert again.exit_code == 0, again.output
    assert pq.read_table(tmp_path / "state" / "sessions").to_pylist() == sessions
    other = run("replay", "--data", var, "--to", "2", "--state", tmp_path / "state", *INLINE)
    assert other.exit_code == Exit.CONFLICT
    assert "another moment" in other.output and "dev/0" in other.output
    assert pq.read_table(tmp_path / "state" / "sessions").to_pylist() == sessions


def test_replay_at_a_time_that_people_can_read(var: Path) -> None:
    at = datetime.fromtimestamp(NOON_MS / 1000, tz=UTC).isoformat()
    said = [
        run("replay", "--data", var, *moment, *INLINE).stdout
        for moment in (["--at", at], ["--at-ms", NOON_MS], [])
    ]
    assert said[0] == said[1] != said[2]


def test_another_copy_may_be_an_archive(tmp_path: Path) -> None:
    var = write_story(tmp_path / "var", archive=tmp_path / "archive")
    logs = ["--archive", (tmp_path / "archive").as_uri(), "--keys", f"directory:{var}"]
    for where, other in (
        (logs, var),
        (["--data", var, *logs[2:]], (tmp_path / "archive").as_uri()),
    ):
        done = run("replay", *where, "--against", other, *INLINE)
        assert done.exit_code == 0, done.output


def test_what_the_cluster_has_and_the_logs_do_not_is_said(
    var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is equal that was not compared."""
    ours = {row["prg"]: row for row in lines(run("replay", "--data", var, "--json", *INLINE))[-2:]}
    live = {prg: (row["index"], row["digest"]) for prg, row in ours.items()}
    monkeypatch.setattr("quantum.lake.jobs.live.live_digests", lambda _: live)
    monkeypatch.setattr("quantum.cli.lake_options.where_of", lambda *_: str(var))
    asked = ["replay", "--cluster", "127.0.0.1:1", "--live", *INLINE]
    assert run(*asked).exit_code == 0
    live["dev/9"] = (4, "00")
    done = run(*asked)
    assert done.exit_code == Exit.NOT_FOUND
    assert "dev/9" in done.output
    live["dev/1"] = (live["dev/1"][0], "00" * 16)
    done = run(*asked)
    assert done.exit_code == Exit.QUARANTINED
    assert "dev/1 diverges" in done.output


def test_a_job_can_be_repeated_until_it_finds_something(
    var: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float, _: object) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            (table / "tenant=dev" / "again.parquet").write_bytes(b"planted")

    monkeypatch.setattr("quantum.cli.lake_running._pause", pause)
    done = run("verify", "--data", var, "--table", table, "--every", "7", *INLINE)
    assert done.exit_code == Exit.QUARANTINED
    assert "again.parquet" in done.stdout
    assert done.stdout.count("Merkle root") == 3
    assert pauses == [7, 7]
    both = run("verify", "--data", var, "--table", table, "--every", "7", "--once", *INLINE)
    assert both.exit_code == Exit.USAGE


def test_a_source_that_is_away_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Exception | None] = [SourceUnreachable("away"), None, ValueError("enough")]

    def work() -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    monkeypatch.setattr("quantum.cli.lake_running._pause", lambda *_: None)
    with pytest.raises(ValueError, match="enough"):
        repeat(work, AgainOptions(every=1))
    assert outcomes == []


def test_comparisons_that_were_cut_short_go_on(var: Path, table: Path, tmp_path: Path) -> None:
    """The file of what is done is there while the job runs, and not afterwards."""
    kept = tmp_path / "done"
    for job in (["verify", "--table", table], ["replay"]):
        done = run(*job, "--data", var, "--resume", kept, *INLINE)
        assert done.exit_code == 0, done.output
        assert not kept.exists()
    kept.write_bytes(b"not ours")
    done = run("replay", "--data", var, "--resume", kept, *INLINE)
    assert (done.exit_code, kept.read_bytes()) == (Exit.FAILED, b"not ours")


def test_an_archive_is_as_good_as_the_logs(tmp_path: Path, var: Path, table: Path) -> None:
    archived = write_story(tmp_path / "var", archive=tmp_path / "archive")
    logs = ["--archive", (tmp_path / "archive").as_uri(), "--keys", f"directory:{archived}"]
    other = tmp_path / "other"
    assert run("ingest", *logs, "--table", other, "--once", *INLINE).exit_code == 0
    for plain in (["--archive", tmp_path / "archive"], ["--data", tmp_path / "archive"]):
        done = run("replay", *plain, *logs[2:], *INLINE)
        assert done.exit_code == 0, done.output
    done = run("verify", *logs, "--table", other, "--json", *INLINE)
    assert done.exit_code == 0, done.output
    live = run("verify", "--data", var, "--table", table, "--json", *INLINE)
    assert lines(done)[-1]["root"] == lines(live)[-1]["root"]


def test_an_archive_behind_a_cluster_may_be_a_plain_path(tmp_path: Path) -> None:
    wanted = f"cluster:127.0.0.1:1+{(tmp_path / 'archive').as_uri()}"
    assert where_of("127.0.0.1:1", str(tmp_path / "archive"), None) == wanted
    keys = DirectoryKeys(str(tmp_path))
    by_path = open_source(f"cluster:127.0.0.1:1+{tmp_path / 'archive'}", keys)
    assert repr(by_path) == repr(open_source(wanted, keys))


def test_compact_keeps_the_rows(var: Path, table: Path) -> None:
    done = run("compact", "--table", table, "--files-min", "2", "--clean", *INLINE)
    assert done.exit_code == 0, done.output
    assert run("verify", "--data", var, "--table", table, *INLINE).exit_code == 0


def test_simulate_and_package(tmp_path: Path) -> None:
    few = ["--sessions", "20000", "--prgs", "20", "--grown-prgs", "21", "--nodes", "3"]
    done = run("simulate", *few, "--json", "--loads", tmp_path / "loads.parquet", *INLINE)
    assert lines(done)[-1]["moved_between_old"] == 0
    loads = pq.read_table(tmp_path / "loads.parquet")
    assert loads.num_rows == 21
    assert sum(loads.column("sessions").to_pylist()) == 20_000
    assert sum(loads.column("sessions_grown").to_pylist()) == 20_000
    assert max(loads.column("sessions").to_pylist()) == lines(done)[-1]["sessions_max"]
    assert "moved_ratio" in run("simulate", *few, *INLINE).stdout
    assert run("simulate", "--prgs", "9", "--grown-prgs", "3", *INLINE).exit_code == 2
    assert run("package", tmp_path / "quantum.zip").exit_code == 0
    with zipfile.ZipFile(tmp_path / "quantum.zip") as archive:
        assert "quantum/lake/jobs/ingest.py" in archive.namelist()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["verify", "--table", "T"], 2, "say where the logs are"),
        (["verify", "--data", "V", "--table", "T"], 3, "there is no table here"),
        (["ingest", "--data", "T", "--table", "T"], 2, "directory"),
        (["ingest", "--cluster", "nowhere", "--table", "T"], 2, "nowhere"),
        (["ingest", "--data", "V", "--table", "T", "--views", "T"], 2, "--views: cannot read"),
        (["replay", "--data", "V", "--to", "99"], 3, "does not go so far"),
        (["replay", "--data", "V", "--live"], 2, "--live compares a --cluster"),
        (["replay", "--data", "V", "--at", "noon"], 2, "with its zone"),
        (["audit", "T"], 2, "no audit log"),
        (["compact", "--table", "T"], 3, "no table"),
        (["usage", "--table", "T"], 3, "no table"),
        (["report", "--table", "T", "--out", "T"], 3, "no table"),
    ],
)
def test_mistakes_get_a_sentence_and_a_code(
    arguments: list[str], code: int, sentence: str, var: Path, tmp_path: Path
) -> None:
    places = {"T": str(tmp_path / "views"), "V": str(var)}
    done = run(*[places.get(each, each) for each in arguments], *INLINE)
    assert done.exit_code == code, done.output
    assert sentence in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lake, "find_spec", lambda name: None if name == "pyspark" else find_spec(name)
    )
    result = CliRunner().invoke(lake.app, ["usage", "--table", "t"])
    assert result.exit_code == 1
    assert "not installed: pyspark" in result.output and "quantum-mq[lake]" in result.output
    assert CliRunner().invoke(lake.app, ["--help"]).exit_code == 0


def test_a_mistake_names_the_partition_and_the_index(tmp_path: Path) -> None:
    """What is wrong with an archive, from where on a job wanted to read it; then it goes on."""
    var = write_story(tmp_path / "var", archive=tmp_path / "archive")
    archive = ["--archive", (tmp_path / "archive").as_uri(), "--table", tmp_path / "table"]
    create_keyring(tmp_path / "other")
    for keys in ("other", "nothing"):
        named = f"directory:{tmp_path / keys}"
        done = run("ingest", *archive, "--keys", named, "--once", *INLINE)
        assert done.exit_code == Exit.WRONG_KEY, done.output
        assert "prg=dev/0, index=1" in " ".join(done.output.split())
    mine = ["--keys", f"directory:{var}", *INLINE]
    assert run("ingest", *archive, "--once", *mine).exit_code == 0
    assert run("verify", *archive, *mine).exit_code == 0
    with LogDirectory(var, prgs=2) as logs:
        last = logs.append(1, [[]])
        logs.archive(1, (tmp_path / "archive").as_uri())
    newest = max((tmp_path / "archive" / "dev" / "1" / "segments").iterdir())
    kept = newest.read_bytes()
    newest.unlink()
    done = run("ingest", *archive, "--once", *mine)
    assert done.exit_code == Exit.NOT_FOUND
    assert f"prg=dev/1, index={last}" in " ".join(done.output.split())
    newest.write_bytes(kept)
    assert run("ingest", *archive, "--once", *mine).exit_code == 0
    assert run("verify", *archive, *mine).exit_code == 0
