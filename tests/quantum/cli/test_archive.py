"""`quantum archive` as a person meets it: a table, one clear line, a distinct exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quantum.archive import open_objects, read_listing
from quantum.archive.names import record_name
from quantum.cli.archive import app
from quantum.cli.exits import Exit
from tests.quantum.lake.archive.boxes import PRG, LogBox, entries, keys_at


def quantum(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of two segments."""
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        for first in (1, 101):
            box.append(entries(first, first + 99))
            box.seal()
        box.archive(open_objects((tmp_path / "archive").as_uri()))
    return tmp_path / "archive"


def test_status_shows_what_is_there(archive: Path) -> None:
    code, out, _ = quantum("status", archive.as_uri())
    assert code == 0
    assert "dev/0" in out and "200" in out
    code, out, _ = quantum("status", archive.as_uri(), "--json")
    row = json.loads(out)
    assert (row["prg"], row["first"], row["last"], row["segments"]) == ("dev/0", 1, 200, 2)


def test_verify_reads_everything_with_keys_and_says_so_without(
    archive: Path, tmp_path: Path
) -> None:
    code, out, _ = quantum("verify", archive.as_uri(), "--keys", tmp_path)
    assert (code, out) == (
        0,
        "dev/0: sound: entries 1 to 200 in 2 segments, 0 snapshots; 200 entries decrypted\n",
    )
    code, out, _ = quantum("verify", archive.as_uri())
    assert code == 0
    assert "nothing decrypted" in out


def test_each_damage_has_its_exit_code_and_its_place(archive: Path, tmp_path: Path) -> None:
    row = read_listing(open_objects(archive.as_uri()), PRG, None).segments[1]
    path = archive / row.object
    whole = path.read_bytes()
    (archive / "dev/0/segments/leftover").write_bytes(b"of a crash")
    code, out, _ = quantum("verify", archive.as_uri(), "--json")
    assert (code, [each["kind"] for each in json.loads(out)["findings"]]) == (0, ["unlisted"])
    path.write_bytes(whole[:-1] + b"x")
    code, out, _ = quantum("verify", archive.as_uri())
    assert code == Exit.QUARANTINED
    assert f"dev/0: altered at index 101: {row.object}" in out
    path.unlink()
    code, out, _ = quantum("verify", archive.as_uri())
    assert code == Exit.NOT_FOUND
    assert "dev/0: missing at index 101" in out
    record = archive / record_name(PRG, 1)
    record.write_bytes(record.read_bytes().replace(b'"format_version":1', b'"format_version":3'))
    assert quantum("verify", archive.as_uri())[0] == Exit.UNSUPPORTED
    code, _, error = quantum("status", archive.as_uri())
    assert code == Exit.UNSUPPORTED
    assert "format_version=3" in error


def test_mistakes_get_one_sentence(archive: Path, tmp_path: Path) -> None:
    keys_at(tmp_path / "other")
    cases: list[tuple[tuple[object, ...], Exit]] = [
        (("verify", archive.as_uri(), "--keys", tmp_path / "other"), Exit.WRONG_KEY),
        (("verify", archive.as_uri(), "--keys", "/nowhere"), Exit.WRONG_KEY),
        (("verify", (tmp_path / "nothing").as_uri()), Exit.NOT_FOUND),
        (("status", (tmp_path / "nothing").as_uri()), Exit.NOT_FOUND),
        (("verify", "no-url"), Exit.USAGE),
        (("verify", "s3://id:secret@bucket"), Exit.USAGE),
        (("verify", "nosuch://bucket"), Exit.USAGE),
        (("status", "--admin", "127.0.0.1:1"), Exit.UNREACHABLE),
        (("status", "--admin", "nowhere"), Exit.USAGE),
    ]
    for arguments, expected in cases:
        code, out, error = quantum(*arguments)
        assert code == expected, (arguments, out, error)
        assert "secret" not in error
        assert len((out + error).splitlines()) <= 2, (arguments, out, error)
