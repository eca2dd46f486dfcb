"""The command line, run as people run it: a process, its lines, its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.session import EXIT_CODES, exit_code
from slipstream.errors import SlipstreamError
from slipstream.nats import NatsConnection, NatsConnectionConfig
from tests.slipstream.servers import NatsServer

_buckets = itertools.count()
SOURCES = str(Path(__file__).parents[2] / "src")


class Cli:
    """The command, bound to a server and a bucket."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._bucket = f"cli-{os.getpid()}-{next(_buckets)}"

    def command(self, *words: str) -> list[str]:
        where = ["--backend", self._url, "--bucket", self._bucket]
        return [sys.executable, "-m", "slipstream.cli", *words, *where]

    def run(self, *words: str, code: int = 0, text: str | None = None) -> str:
        done = subprocess.run(
            self.command(*words), input=text, capture_output=True, text=True, env=environment()
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        if code:
            assert len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr if code else done.stdout

    def json(self, *words: str, text: str | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, "--json", text=text).splitlines()]

    def writer(self) -> Any:
        """A bucket opened in this process, for what happens behind a command's back."""
        return self._url, self._bucket


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES}


@pytest.fixture
def cli(nats_server: NatsServer) -> Cli:
    return Cli(nats_server.url)


def test_put_get_and_scan(cli: Cli) -> None:
    assert cli.run("put", "app.a", "one") == "app.a is at revision 1\n"
    assert cli.json("put", "app.b", "zwei €") == [{"key": "app.b", "revision": 2}]
    assert cli.run("get", "app.a") == "one\n"
    assert cli.json("get", "app.b") == [{"key": "app.b", "value": "zwei €", "revision": 2}]
    assert cli.run("scan", "app.") == "app.a\tone\napp.b\tzwei €\n"
    assert [line["key"] for line in cli.json("scan")] == ["app.a", "app.b"]
    assert cli.run("scan", "zzz") == ""


def test_a_table_is_put_in_order_of_its_lines(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("".join(f"k.{n % 300}\tv{n}\n" for n in range(1_000)))
    (summary,) = cli.json("put", "--from-tsv", str(tmp_path / "t.tsv"))
    assert summary == {"written": 1_000, "revision": 1_000}
    rows = dict(line.split("\t") for line in cli.run("scan", "k.").splitlines())
    assert rows == {f"k.{n}": f"v{n + 900 if n < 100 else n + 600}" for n in range(300)}
    assert cli.json("put", "--from-tsv", "-", text="x\t1\n")[0]["written"] == 1


@pytest.mark.parametrize("store", ["log", "sqlite", "rocksdb"])
def test_watch_folds_and_resumes_with_the_delta(cli: Cli, tmp_path: Path, store: str) -> None:
    cli.run("put", "--from-tsv", "-", text="".join(f"k.{n}\tv\n" for n in range(50)))
    arguments = ["watch", "--fold", str(tmp_path / "fold"), "--store", store, "--until-caught-up"]
    *updates, summary = cli.json(*arguments)
    assert len(updates) == 50
    assert updates[0] == {"event": "put", "key": "k.0", "value": "v", "revision": 1}
    assert summary == {
        "event": "summary",
        "delivered": 50,
        "applied": 50,
        "cursor": 50,
        "resumed_from": None,
        "resynced": False,
        "stale_keys_removed": 0,
        "caught_up": True,
    }
    cli.run("put", "k.1", "w")
    assert cli.run(*arguments).splitlines() == ["+ k.1 = w", "1 updates from revision 50 to 51"]
    (idle,) = cli.json(*arguments)
    assert (idle["delivered"], idle["resumed_from"], idle["cursor"]) == (0, 51, 51)


def test_watch_of_prefixes_leaves_the_rest_out(cli: Cli, tmp_path: Path) -> None:
    cli.run("put", "--from-tsv", "-", text="a.1\tx\nb.1\tx\nc.1\tx\n")
    lines = cli.json("watch", "a.", "c.", "--fold", str(tmp_path / "f"), "--until-caught-up")
    assert [line.get("key") for line in lines] == ["a.1", "c.1", None]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_live_watch_shows_changes_and_ends_on_a_signal(
    cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        cli.command("watch", "--fold", str(tmp_path / "fold"), "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    cli.run("put", "a", "1")
    assert json.loads(process.stdout.readline())["key"] == "a"
    process.send_signal(number)
    output, errors = process.communicate(timeout=90)
    summary = json.loads(output.splitlines()[-1])
    assert (process.returncode, errors) == (0, "")
    assert (summary["event"], summary["cursor"]) == ("summary", 1)


def test_a_person_at_a_terminal_sees_a_table(cli: Cli, tmp_path: Path) -> None:
    cli.run("put", "--from-tsv", "-", text="a.1\tone\na.2\ttwo\n")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        cli.command("watch", "--fold", str(tmp_path / "fold"), "--until-caught-up"),
        stdout=theirs,
        stderr=theirs,
        env={**environment(), "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # A terminal whose other end is closed says so.
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    assert process.wait(90) == 0
    text = seen.decode()
    assert "2 updates, at revision 2" in text
    assert "a.2" in text
    assert "2 updates from the beginning to 2" in text
    assert "Traceback" not in text


def test_a_fold_travels_by_directory_and_by_object_store(cli: Cli, tmp_path: Path) -> None:
    cli.run("put", "--from-tsv", "-", text="".join(f"k.{n}\tv\n" for n in range(20)))
    fold, artifact, store = (tmp_path / name for name in ("fold", "artifact", "objects"))
    exported = cli.json("export", "--fold", str(fold), "--to", str(artifact))[0]
    assert (exported["outcome"], exported["revision"]) == ("exported", 20)
    imported = cli.json("import", "--fold", str(tmp_path / "two"), "--from", str(artifact))[0]
    assert (imported["revision"], imported["resumable"]) == (20, True)
    round_ = ["--publish", f"file://{store}", "--allow-non-atomic-pointer", "--key", "edge"]
    published = cli.json("export", "--fold", str(fold), *round_)[0]
    assert published["outcome"] == "published"
    # The lease of the round is a key of the bucket too, and may be in its own export.
    revision = published["revision"]
    assert revision in {20, 21}
    cli.run("put", "later", "v")
    remote = ["--published", f"file://{store}", "--key", "edge"]
    assert "bucket continues it" in cli.run("import", "--fold", str(tmp_path / "three"), *remote)
    watch = ["watch", "--fold", str(tmp_path / "three"), "--until-caught-up"]
    summary = cli.json(*watch)[-1]
    assert summary["resumed_from"] == revision
    assert summary["delivered"] <= 3, "the tail, and not the twenty keys before it"
    assert summary["cursor"] == 23
    held = cli.json("lease")[0]
    assert held["holder"] == "slipstream-cli"
    assert held["completed_cursor_hex"].startswith(f"{revision:016x}")
    assert "another node" in cli.run("export", "--fold", str(fold), *round_, code=5)


def test_a_lease_is_won_once(cli: Cli) -> None:
    assert "nobody" in cli.run("lease", code=4)
    won = cli.json("lease", "--acquire", "--holder", "node-1", "--ttl", "60")[0]
    assert won["holder"] == "node-1"
    assert "another node" in cli.run("lease", "--acquire", "--holder", "node-2", code=5)
    assert cli.run("lease").startswith("held by node-1 until ")


def test_every_failure_is_one_sentence_and_a_code(cli: Cli, tmp_path: Path) -> None:
    fold = ["--fold", str(tmp_path / "fold")]
    assert "no such key" in cli.run("get", "absent", code=4)
    assert "blanks" in cli.run("get", "a b", code=2)
    assert "pattern" in cli.run("scan", "k*", code=2)
    assert "give KEY and VALUE" in cli.run("put", "k", code=2)
    assert "give --to" in cli.run("export", *fold, code=2)
    assert "give --from" in cli.run("import", *fold, code=2)
    assert "no such fold backend" in cli.run("watch", *fold, "--store", "paper", code=2)
    assert "KEY<tab>VALUE" in cli.run("put", "--from-tsv", "-", text="no tab\n", code=2)
    assert "No such file" in cli.run("put", "--from-tsv", "/no/such/file", code=11)
    assert "no artifact" in cli.run("import", *fold, "--from", str(tmp_path / "none"), code=4)
    (tmp_path / "other").write_text("not a fold")
    stranger = ["--fold", str(tmp_path / "other"), "--until-caught-up"]
    assert "not a snapshot log" in cli.run("watch", *stranger, code=6)
    error = json.loads(cli.run("get", "absent", "--json", code=4))
    assert error["error"] == "NotFound"
    nowhere = Cli("nats://127.0.0.1:1")
    assert "cannot connect" in nowhere.run("get", "k", code=3)
    assert "no leader answers" in Cli("clustor://127.0.0.1:1").run("get", "k", code=3)
    assert "clustor://HOST:PORT" in Cli("clustor://127.0.0.1").run("get", "k", code=2)
    assert "a backend is" in Cli("smoke://signals").run("get", "k", code=2)


def test_every_error_of_the_library_has_an_exit_code() -> None:
    def family(root: type[SlipstreamError]) -> list[type[SlipstreamError]]:
        return [root, *(leaf for child in root.__subclasses__() for leaf in family(child))]

    for kind in family(SlipstreamError):
        assert exit_code(kind.__new__(kind)) in {code for _, code in EXIT_CODES}


async def test_a_recreated_bucket_is_said_in_the_summary(cli: Cli, tmp_path: Path) -> None:
    arguments = ["watch", "--fold", str(tmp_path / "fold"), "--until-caught-up"]
    await asyncio.to_thread(cli.run, "put", "--from-tsv", "-", text="a\t1\nb\t2\n")
    await asyncio.to_thread(cli.run, *arguments)
    url, bucket = cli.writer()
    connection = NatsConnection(NatsConnectionConfig(url))
    await connection.connect()
    store = await connection.store(bucket)
    await store._link.jetstream.delete_stream(f"KV_{bucket}")
    await connection.shutdown()
    await asyncio.to_thread(cli.run, "put", "c", "3")
    summary = (await asyncio.to_thread(cli.json, *arguments))[-1]
    assert summary["resynced"] is True
    assert (summary["resumed_from"], summary["cursor"]) == (2, 1)
    assert summary["stale_keys_removed"] == 2
