"""`quantum log` as a person meets it: one clear line, a distinct exit code, never a traceback."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from clustor.log.config import LogConfig
from clustor.log.types import Entry, IoWriterMode, LogIndex, PartitionId, Term
from clustor.runtime.disk import open_mode
from clustor.runtime.keys.store import create_keyring
from clustor.runtime.partition_log import open_partition_log

QUANTUM = Path(".venv/bin/quantum")
LEDGER = "state/7/wal/durability.log"
SEGMENT = "state/7/wal/segment-00000000000000000001.log"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A node's data directory with two small logs."""
    keys = create_keyring(tmp_path)
    for number in (7, 8):
        root = tmp_path / "state" / str(number)
        root.mkdir(parents=True)
        disk = open_mode(IoWriterMode.BLOCKING)
        opened = open_partition_log(
            disk, root, keys, LogConfig(segment_bytes=1 << 20), create_as=PartitionId(number)
        )
        for index in range(1, 4):
            opened.append([Entry(Term(2), LogIndex(index), b"hello %d" % index)])
        disk.close()
    return tmp_path


def quantum(*arguments: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [str(QUANTUM), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr + done.stdout
    return done.returncode, done.stdout, done.stderr


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_verify_walks_a_data_directory_or_one_partition(data: Path) -> None:
    code, out, _ = quantum("log", "verify", data)
    assert code == 0
    assert out.count("Healthy: entries 1 to 3, proven through 3") == 2
    code, out, _ = quantum("log", "verify", data / "state" / "7", "--json")
    verdict = json.loads(out)
    assert code == 0
    assert (verdict["state"], verdict["proven_index"], verdict["problem"]) == ("Healthy", 3, None)


def test_dump_prints_entries_from_an_index(data: Path) -> None:
    code, out, _ = quantum("log", "dump", data / "state" / "7", "--from", 2)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 2 and lines[0].split()[:3] == ["2", "term", "2"]
    assert lines[1].endswith("hello 3")
    code, out, _ = quantum("log", "dump", data / "state" / "8", "--json")
    assert json.loads(out.splitlines()[0]) == {
        "index": 1,
        "kind": "DATA",
        "payload": "aGVsbG8gMQ==",
        "term": 2,
    }


def test_dump_of_several_logs_says_which_there_are(data: Path) -> None:
    code, _, err = quantum("log", "dump", data)
    assert code == 2
    assert "holds 2 logs" in err


def test_stat_measures(data: Path) -> None:
    code, out, _ = quantum("log", "stat", data / "state" / "7", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["partition_id"], found["payload_bytes"], found["last_index"]) == ("7", 21, 3)
    assert found["dek_epochs"] == [1] and found["segments"][0]["entries"] == 3
    code, out, _ = quantum("log", "stat", data)
    assert code == 0
    assert len(re.findall(r"│ open +│", out)) == 2


@pytest.mark.parametrize("command", ["verify", "dump", "stat"])
def test_damage_has_its_own_exit_code_and_one_line(data: Path, command: str) -> None:
    partition = data / "state" / "7"
    flip(data / SEGMENT, 128 + 36 + 3)  # inside the first sealed block
    code, out, err = quantum("log", command, partition)
    assert code == 6
    assert len((out + err).splitlines()) >= 1
    assert "hello" not in out
    flip(data / SEGMENT, 128 + 36 + 3)
    flip(data / LEDGER, 70)  # the second of several records
    assert quantum("log", command, partition)[0] == 5


def test_a_flip_in_one_log_does_not_hide_the_other(data: Path) -> None:
    flip(data / SEGMENT, 128 + 36 + 3)
    code, out, _ = quantum("log", "verify", data)
    assert code == 6
    assert out.count("Healthy") == 1 and out.count("Quarantine") == 1


def test_wrong_and_missing_keys(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    other.write_text("00" * 32)
    code, _, err = quantum("log", "verify", data, "--key-file", other)
    assert code == 4
    assert err.count("\n") == 1 and "does not open this key ring" in err
    other.write_text("nonsense")
    assert quantum("log", "verify", data, "--key-file", other)[0] == 4
    assert quantum("log", "verify", data, "--key-file", tmp_path / "absent")[0] == 4
    (data / "keys" / "keyring.json").unlink()
    code, _, err = quantum("log", "verify", data)
    assert code == 4 and "no key ring" in err


def test_missing_files(data: Path) -> None:
    assert quantum("log", "verify", data / "nowhere")[0] == 3
    (data / SEGMENT).unlink()
    code, out, _ = quantum("log", "verify", data / "state" / "7")
    assert code == 6 and "missing" in out
    (data / LEDGER).unlink()
    assert quantum("log", "verify", data / "state" / "7")[0] == 3
    (data / "state/8/metadata.json").unlink()
    code, out, _ = quantum("log", "verify", data / "state" / "8")
    assert code == 3 and "metadata.json is gone" in out


def test_an_empty_directory_holds_no_log(tmp_path: Path) -> None:
    code, _, err = quantum("log", "stat", tmp_path)
    assert code == 3 and "there is no log" in err


def test_selftest_passes_and_prints_json() -> None:
    code, out, _ = quantum("selftest")
    assert code == 0 and "0 failed" in out
    code, out, _ = quantum("selftest", "--json")
    found = json.loads(out)
    assert code == 0 and found["passed"] and len(found["checks"]) >= 11


def test_the_catalog_is_canonical_json() -> None:
    code, out, _ = quantum("spec", "catalog")
    assert code == 0 and "PreVoteResponse" in json.dumps(json.loads(out))
    code, out, _ = quantum("spec", "wide-ints")
    assert code == 0 and json.loads(out)


@pytest.mark.parametrize("arguments", [("--nonsense",), ("log", "nonsense"), ("log", "verify")])
def test_a_wrong_flag_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    assert quantum(*arguments)[0] == 2
