"""Backups that nodes make by themselves: by whom, how old they are, and after `kill -9`."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec
import pytest
from typer.testing import Result

from quantum.archive import open_objects
from quantum.archive.backups import find_backups
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.cli.app import build
from quantum.tenants.broker_file import (
    BROKER_FILE,
    BackupsEntry,
    read_broker_file,
)
from tests.interop.broker_process import DEADLINE_SECONDS, BrokerProcess
from tests.interop.cluster_process import ClusterProcess
from tests.interop.test_archive import archiving_cluster
from tests.interop.test_backup import publish, run
from tests.interop.test_mqtt_replay import Node
from tests.quantum.serving.client import connect
from tests.slipstream.servers import S3Server

MESSAGES = [b"message %d" % number for number in range(20)]


def quantum(*arguments: str) -> Result:
    return run(build([arguments[0]]), *arguments)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def verified(url: str) -> list[int]:
    """Return when the backups of a store began that were verified."""
    found = find_backups(open_objects(url)).backups
    return [each.made_ms for each in found if each.is_recorded and each.is_verified]


def metrics(broker: BrokerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.findall(r"^(quantum_backups?_\w+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def doctor(broker: BrokerProcess) -> list[str]:
    """Return what the doctor says of backups."""
    said = json.loads(quantum("doctor", "--admin", str(broker.admin), "--json").output)
    assert "backups" in said["checks"]
    return [each["what"] for each in said["findings"] if each["check"] == "backups"]


def restored(url: str, keys: Path, back: Path, count: int) -> set[bytes]:
    """Restore the newest backup, start a broker on it, and return what it retains."""
    newest = str(max(verified(url)))
    options = ("--from", url, "--keys", str(keys))
    done = quantum("restore", *options, "--into", str(back), "--backup", newest)
    assert done.exit_code == 0, done.output
    with BrokerProcess(back, partitions=2) as broker:
        reader = connect(Node(broker.mqtt), client_id="reader")
        reader.subscribe(b"t/#", 1)
        found = {reader.take().payload for _ in range(count)}
        reader.cut()
    return found


def test_a_broker_backs_itself_up_and_says_how_old_the_newest_is(tmp_path: Path) -> None:
    url = (tmp_path / "archive").as_uri()
    data = tmp_path / "data"
    with BrokerProcess(data, partitions=2, archive=url, backup_seconds=2) as broker:
        publish(broker, MESSAGES)
        told_ms = int(broker.page("/v1/backups")["due_ms"])
        published = time.time_ns() // 1_000_000
        until(lambda: max(verified(url), default=0) > published, "a backup of all messages")
        until(lambda: len(verified(url)) == 3 and min(verified(url)) > published, "three are kept")
        page = broker.page("/v1/backups")
        assert int(page["due_ms"]) >= told_ms
        assert (page["carries_out"], page["keep_count"], page["interval_seconds"]) == (True, 3, 2)
        assert page["failures"] == "0"
        assert {each["scheduled"] for each in page["backups"]} == {True}
        found = metrics(broker)
        assert found["quantum_backup_interval_seconds"] == 2
        assert 0 <= found["quantum_backup_age_seconds"] < DEADLINE_SECONDS
        assert found["quantum_backups_verified_total"] >= 3
        assert found["quantum_backup_failures_total"] == 0
        shown = quantum("admin", "backups", "show", "--admin", str(broker.admin), "--json")
        assert shown.exit_code == 0 and '"interval_seconds"' in shown.output
        assert any("never practised" in each for each in doctor(broker))
        options = ("--from", url, "--keys", str(data / "keys"))
        assert quantum("drill", "restore", *options, "--overdue").exit_code == 1
        drill = quantum("drill", "restore", *options, "--json")
        assert drill.exit_code == 0, drill.output
        assert json.loads(drill.output)["wrong"] == []
        assert quantum("drill", "restore", *options, "--overdue").exit_code == 0
        until(lambda: broker.page("/v1/backups")["drilled_ms"] is not None, "the node heard of it")
        assert not any("practised" in each for each in doctor(broker))
        assert broker.interrupt() == 0
    listed = quantum("backup", "list", "--from", url)
    assert all("verified  scheduled" in line for line in listed.output.splitlines())
    assert quantum("backup", "verify", *options).exit_code == 0
    assert restored(url, data / "keys", tmp_path / "back", len(MESSAGES)) == set(MESSAGES)


def test_backups_without_an_archive_are_refused_in_one_sentence(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    done = quantum("up", "--data", data, "--backup-interval-seconds", "60")
    assert done.exit_code == 3 and "backups need an archive" in done.output
    assert not (tmp_path / "data").exists(), "nothing is made first"


class Gate(ThreadingHTTPServer):
    """An S3 endpoint before another, which can keep an upload from being answered."""

    daemon_threads = True

    def __init__(self, behind: str) -> None:
        self.behind = urlsplit(behind).netloc
        self.holds: re.Pattern[str] | None = None
        self.passes_on = True
        self.held = threading.Event()
        self.opened = threading.Event()
        super().__init__(("127.0.0.1", 0), _GateRequest)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def hold(self, pattern: str, *, passes_on: bool) -> None:
        """Keep the next uploads of such names; they may arrive, and are not answered."""
        self.held.clear()
        self.opened.clear()
        self.passes_on, self.holds = passes_on, re.compile(pattern)

    def open(self) -> None:
        self.holds = None
        self.opened.set()


class _GateRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gate

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        holds = self.server.holds
        is_held = self.command == "PUT" and holds is not None and holds.search(self.path)
        if is_held and not self.server.passes_on:
            self._keep()
            return
        behind = HTTPConnection(self.server.behind, timeout=60)
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        content = answer.read()
        behind.close()
        if is_held:
            self._keep()
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        self.wfile.write(content)

    def _keep(self) -> None:
        self.server.held.set()
        self.server.opened.wait(DEADLINE_SECONDS)
        self.close_connection = True

    def do_GET(self) -> None:  # http.server's
        self._pass_on()

    def do_PUT(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def do_HEAD(self) -> None:
        self._pass_on()

    def do_DELETE(self) -> None:
        self._pass_on()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    server = S3Server()
    found = Gate(server.url)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    with urlopen(Request(f"{server.url}/bucket", method="PUT")) as answer:
        assert answer.status == 200
    monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield found
    found.open()
    found.shutdown()
    found.server_close()
    server.stop()


@contextmanager
def killed_at(broker: BrokerProcess, gate: Gate, name: str, *, passes_on: bool) -> Iterator[None]:
    """End a broker while an upload of such a name is under way, and start it again."""
    gate.hold(name, passes_on=passes_on)
    yield
    assert gate.held.wait(DEADLINE_SECONDS), f"{name} was never uploaded\n{broker.last_words()}"
    broker.kill()
    gate.open()
    broker.start()


def test_killed_while_it_uploads_the_next_backup_has_all_that_was_acknowledged(
    tmp_path: Path, gate: Gate
) -> None:
    url, data = "s3://bucket/archive", tmp_path / "data"
    with BrokerProcess(data, partitions=2, archive=url, backup_seconds=1) as broker:
        with killed_at(broker, gate, r"/segments/", passes_on=False):
            publish(broker, MESSAGES[:10])
        for passes_on in (False, True):
            with killed_at(broker, gate, r"_backups/\d+\.json", passes_on=passes_on):
                pass
        publish(broker, MESSAGES)
        published = time.time_ns() // 1_000_000
        until(lambda: max(verified(url), default=0) > published, broker.last_words())
        broker.kill()
    options = ("--from", url, "--keys", str(data / "keys"))
    checked = quantum("backup", "verify", *options, "--backup", str(max(verified(url))))
    assert checked.exit_code == 0, checked.output
    assert restored(url, data / "keys", tmp_path / "back", len(MESSAGES)) == set(MESSAGES)


def test_one_node_of_a_cluster_makes_them_and_another_one_after_it(tmp_path: Path) -> None:
    data, url = tmp_path / "var", (tmp_path / "archive").as_uri()
    cluster = ClusterProcess(data, tenant_prgs=1, restart=False)
    archiving_cluster(data, url, cluster.base_port)
    described = msgspec.structs.replace(read_broker_file(data), backups=BackupsEntry(1))
    (data / BROKER_FILE).write_bytes(msgspec.json.encode(described))

    def page(node: int) -> dict[str, Any]:
        try:
            code, found = fetch(cluster.admin(node), "/v1/backups")
        except AdminUnreachable:
            return {}
        return found if code == 200 else {}

    def carriers(*nodes: int) -> list[int]:
        return [node for node in nodes if page(node).get("carries_out")]

    def all_know(*nodes: int) -> bool:
        newest = str(max(verified(url), default=0))
        return all(int(page(node).get("verified_ms") or 0) >= int(newest) > 0 for node in nodes)

    with cluster:
        cluster.until(lambda: len(verified(url)) >= 2, "backups are made")
        (first,) = carriers(1, 2, 3)
        cluster.until(lambda: all_know(1, 2, 3), "every node knows how old the newest is")
        cluster.kill(first)
        left = [node for node in (1, 2, 3) if node != first]
        cluster.until(lambda: len(carriers(*left)) == 1, "another one leads the control plane")
        before = max(verified(url))
        cluster.until(lambda: max(verified(url)) > before, "and goes on")
