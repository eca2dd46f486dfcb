"""Backups of a living broker: points, digests, going back, and what is wrong with an archive."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from quantum.cli.backup import app as backup_app
from quantum.cli.backup import drill_app
from quantum.cli.restore import at, restore
from quantum.node.replaying import replay_directory
from tests.interop.broker_process import BrokerProcess
from tests.interop.test_mqtt_replay import Node
from tests.quantum.serving.client import connect

PARTITIONS = 2
EARLY = [b"early %d" % number for number in range(12)]
LATE = [b"late %d" % number for number in range(6)]


@dataclass(frozen=True)
class Story:
    """A broker's archive, with a moment between what was early and what was late."""

    url: str
    root: Path
    data: Path
    between: str
    first: dict[str, Any]
    last: dict[str, Any]

    @property
    def options(self) -> list[str]:
        return ["--from", self.url, "--keys", str(self.data / "keys")]


def run(tree: typer.Typer, *arguments: str) -> Result:
    return CliRunner().invoke(tree, [*arguments])


def single(command: Any) -> typer.Typer:
    tree = typer.Typer()
    tree.command()(command)
    return tree


def publish(broker: BrokerProcess, messages: list[bytes]) -> None:
    client = connect(Node(broker.mqtt), client_id="publisher")
    for number, message in enumerate(messages):
        assert not client.publish(b"t/%d" % number, message, 1, retain=True).is_failure
    client.leave()
    client.cut()


def back_up(broker: BrokerProcess, url: str) -> dict[str, Any]:
    keys = str(broker.data / "keys")
    made = run(
        backup_app,
        *("create", "--cluster", str(broker.admin), "--to", url, "--keys", keys, "--json"),
    )
    assert made.exit_code == 0, made.output
    found: dict[str, Any] = json.loads(made.output)
    return found


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    root = tmp_path_factory.mktemp("backup")
    url = f"file://{root / 'archive'}"
    with BrokerProcess(root / "data", partitions=PARTITIONS, archive=url) as broker:
        publish(broker, EARLY)
        first = back_up(broker, url)
        between = datetime.now(UTC) + timedelta(milliseconds=1)
        while datetime.now(UTC) <= between:  # a stamp of its own for what is late
            time.sleep(0.002)
        publish(broker, LATE)
        last = back_up(broker, url)
        assert broker.interrupt() == 0
    return Story(url, root, root / "data", between.isoformat(), first, last)


def digests(data: Path, indexes: dict[str, int]) -> dict[str, str]:
    """What a broker's own disk says of its partitions behind these entries."""
    found = {}
    for prg, index in indexes.items():
        for each in replay_directory(data, index, lambda _: None):
            if f"{each.tenant}/{each.partition}" == prg and each.index == index:
                found[prg] = each.digest
    return found


def points(backup: dict[str, Any], of: str) -> dict[str, Any]:
    return {each["prg"]: each[of] for each in backup["points"]}


def test_a_backup_s_digests_are_those_of_the_broker_s_own_disk(story: Story) -> None:
    for backup in (story.first, story.last):
        indexes = points(backup, "index")
        assert sum(indexes.values()) > 0
        assert digests(story.data, indexes) == points(backup, "digest")
    assert points(story.first, "digest") != points(story.last, "digest")


def test_the_cluster_s_own_groups_are_archived_too(story: Story) -> None:
    groups = story.root / "archive" / "_groups"
    assert list(groups.glob("control/0/manifest/*.json"))
    assert list(groups.glob("kv/*/manifest/*.json"))


def test_backups_are_listed_and_found_whole(story: Story) -> None:
    listed = run(backup_app, "list", "--from", story.url)
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == [
        str(story.first["made_ms"]),
        str(story.last["made_ms"]),
    ]
    for backup in (story.first, story.last):
        found = run(backup_app, "verify", *story.options, "--backup", str(backup["made_ms"]))
        assert found.exit_code == 0, found.output


def test_a_restored_broker_has_what_was_backed_up_and_goes_on(story: Story, tmp_path: Path) -> None:
    made = str(story.first["made_ms"])
    back = tmp_path / "back"
    done = run(single(restore), *story.options, "--into", str(back), "--backup", made, "--json")
    assert done.exit_code == 0, done.output
    restored = {each["prg"]: each["digest"] for each in json.loads(done.output)["partitions"]}
    assert restored == points(story.first, "digest")
    indexes = points(story.first, "index")
    assert digests(back, indexes) == restored, "its own disk says the same"
    with BrokerProcess(back, partitions=PARTITIONS) as broker:
        reader = connect(Node(broker.mqtt), client_id="reader")
        reader.subscribe(b"t/#", 1)
        got = {reader.take().payload for _ in EARLY}
        assert got == set(EARLY)
        reader.cut()
        publish(broker, LATE)
        broker.kill()
        broker.start()
        reader = connect(Node(broker.mqtt), client_id="again")
        reader.subscribe(b"t/#", 1)
        assert {reader.take().payload for _ in EARLY} == {*LATE, *EARLY[len(LATE) :]}
        reader.cut()


def test_the_time_machine_shows_what_was_retained_then(story: Story) -> None:
    looked = run(single(at), story.between, "retained", *story.options, "--json")
    assert looked.exit_code == 0, looked.output
    rows = [json.loads(line) for line in looked.output.splitlines()]
    sizes = {row["topic"]: row["bytes"] for row in rows}
    assert sizes == {f"t/{number}": len(text) for number, text in enumerate(EARLY)}
    read = run(single(at), story.between, "read", *story.options, "--json")
    shown = [json.loads(line) for line in read.output.splitlines()]
    assert {row["prg"]: row["digest"] for row in shown} == points(story.first, "digest")


def test_before_anything_was_there_is_nothing(story: Story) -> None:
    looked = run(single(at), "2020-01-01T00:00", "retained", *story.options)
    assert (looked.exit_code, looked.output) == (0, "")


def test_a_drill_restores_compares_and_remembers(story: Story, tmp_path: Path) -> None:
    report = tmp_path / "drill.json"
    never = run(drill_app, *story.options, "--overdue")
    assert never.exit_code == 1 and "ever practised" in never.output
    done = run(drill_app, *story.options, "--report", str(report))
    assert done.exit_code == 0, done.output
    lately = run(drill_app, *story.options, "--overdue")
    assert lately.exit_code == 0
    (record,) = (story.root / "archive" / "_backups" / "drills").iterdir()
    said = json.loads(record.read_text())
    assert said == json.loads(report.read_text()) and said["wrong"] == []
    drilled_ms = said["drilled_ms"] - 91 * 86_400_000
    record.rename(record.with_name(f"{drilled_ms:015d}.json"))
    assert run(drill_app, *story.options, "--overdue").exit_code == 1


def test_nothing_is_restored_over_what_is_there(story: Story, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    done = run(single(restore), *story.options, "--into", str(tmp_path))
    assert done.exit_code == 3 and [each.name for each in tmp_path.iterdir()] == ["mine"]


def test_an_entry_that_the_archive_has_not_is_refused(story: Story, tmp_path: Path) -> None:
    done = run(
        single(restore), *story.options, "--into", str(tmp_path / "x"), "--to-index", "999999"
    )
    assert done.exit_code == 3 and "ends before" in done.output
    assert not (tmp_path / "x" / "broker.json").exists()


def test_what_was_altered_in_the_store_is_found(story: Story, tmp_path: Path) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(story.root / "archive", copy)
    spoilt = ["--from", f"file://{copy}", "--keys", str(story.data / "keys")]
    assert run(backup_app, "verify", *spoilt).exit_code == 0
    record = copy / "_backups" / f"{story.last['made_ms']:015d}.json"
    record.write_bytes(record.read_bytes().replace(b'"index":', b'"index": ', 1))
    lied = json.loads(record.read_bytes())
    lied["points"][0]["index"] -= 1
    record.write_text(json.dumps(lied))
    assert run(backup_app, "verify", *spoilt).exit_code == 6, "its MAC does not match"
    record.unlink()
    segment = max(copy.glob("dev/*/segments/*"), key=lambda file: file.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    assert run(backup_app, "verify", *spoilt).exit_code == 6
