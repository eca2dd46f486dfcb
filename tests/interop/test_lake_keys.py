"""Issue 20, items 11 to 13, against a broker that runs: its keys, another's, and its absence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from clustor.runtime.keys.store import create_keyring, load_keyring
from quantum.archive.feed_page import key_name
from quantum.cli.exits import Exit
from quantum.lake import session
from tests.interop.broker_process import BrokerProcess
from tests.interop.test_archive import publish
from tests.quantum.lake.jobs.test_commands import run

pytestmark = pytest.mark.timeout(600)
MESSAGES = 20
DEADLINE_SECONDS = 180.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("lake") / "var", partitions=1) as broker:
        publish(broker.mqtt, [b"message-%04d" % number for number in range(MESSAGES)])
        yield broker


def reach(*arguments: object) -> Result:
    """Run a command against a broker that lives, as one does who is told that nobody answers."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    done = run(*arguments)
    while done.exit_code == Exit.UNREACHABLE and time.monotonic() < deadline:
        done = run(*arguments)
    return done


def test_item_12_a_live_broker_names_the_key_that_it_wants(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = key_name(load_keyring(broker.data / "keys"))
    ours = key_name(create_keyring(tmp_path / "other"))
    logs = ["--cluster", broker.admin, "--keys", tmp_path / "other"]

    def no_spark(*_: object, **__: object) -> None:
        raise AssertionError("Spark was waited for")

    monkeypatch.setattr(session, "spark_session", no_spark)
    done = reach("ingest", *logs, "--table", tmp_path / "table", "--once", "--master", "local[1]")
    assert done.exit_code == 4, done.output
    said = " ".join(done.stderr.split())
    assert f"wanted={theirs}" in said and f"given={ours} of directory" in said


def test_items_11_and_13_a_live_broker_is_read_in_this_process(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """By a plain path of keys, without Spark; what comes later is missed by its number."""
    logs = ["--cluster", broker.admin, "--keys", broker.data]
    table = ["--table", tmp_path / "table"]
    done = reach("ingest", *logs, *table, "--once")
    assert done.exit_code == 0, done.output
    assert "MiB to read: in this process" in done.stderr
    assert reach("verify", *logs, *table).exit_code == 0
    publish(broker.mqtt, [b"later"])
    behind = reach("verify", *logs, *table)
    assert behind.exit_code == 15, behind.output
    assert "the log has 1 messages that it lacks" in behind.stderr
    live = reach("replay", *logs, "--live")
    assert live.exit_code == 0, live.output
    assert "equal: 1 partitions are as the running cluster has them" in live.stdout


def test_item_12_a_broker_that_was_stopped_is_missed_at_once(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what it waits between its questions: how long those take is the machine's affair."""
    assert broker.interrupt() == 0
    pauses: list[float] = []
    monkeypatch.setattr("quantum.lake.feed.client.time", Counted(pauses))
    done = run("replay", "--cluster", broker.admin, "--keys", broker.data)
    assert done.exit_code == 12, done.output
    assert "is the broker running" in done.stderr
    assert sum(pauses) < 2


class Counted:
    """The clock of a reader, which notes what it rests."""

    def __init__(self, pauses: list[float]) -> None:
        self._pauses = pauses

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        self._pauses.append(seconds)
        time.sleep(seconds)
