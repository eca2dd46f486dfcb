"""`quantum queues` and `quantum amqp` against running nodes: what an operator sees and does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Message, symbol
from proton.utils import SendException
from typer.testing import CliRunner, Result

from quantum.cli.admin_client import fetch
from quantum.cli.app import build
from tests.interop.broker_process import BrokerProcess
from tests.interop.stock_proton import connected, send_all, take_all

WAIT = 30.0
DEADLINE_SECONDS = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("queues") / "var") as process:
        yield process


def quantum(broker: BrokerProcess, *arguments: str, said: str = "") -> Result:
    command = [*arguments, "--admin", str(broker.admin)]
    return CliRunner().invoke(build([arguments[0]]), command, input=said)


def done(broker: BrokerProcess, *arguments: str, said: str = "") -> list[Any]:
    """Run a command with --json; return what it printed, line by line."""
    found = quantum(broker, *arguments, "--json", said=said)
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.stdout.splitlines()]


def row_of(broker: BrokerProcess, name: str) -> Any:
    (page,) = done(broker, "queues", "list")
    return next((row for row in page["items"] if row["name"] == name), None)


def bodies(rows: list[Any]) -> list[str]:
    return [row["body"]["text"] for row in rows]


def test_a_queue_is_made_looked_at_and_ended(broker: BrokerProcess) -> None:
    assert done(broker, "queues", "create", "made", "--deliveries-max", "2") == [
        {"name": "made", "done": "1"}
    ]
    with connected(broker.amqp) as connection:
        send_all(connection, "made", *(f"m{n}" for n in range(5)))
        receiver = connection.create_receiver("made", credit=2)
        receiver.receive(timeout=WAIT)
        receiver.receive(timeout=WAIT)
        (shown,) = done(broker, "queues", "show", "made")
        assert (shown["messages"], shown["receivers"]) == (5, 1)
        assert shown["unsettled"] >= 2  # a client gives credit again as it takes
        assert (shown["deliveries_max"], shown["dead_letters"]) == ("2", 0)
        metrics = scraped(broker)
        assert metrics['quantum_amqp_unsettled{tenant="dev"}'] >= 2
        assert metrics['quantum_amqp_receivers{tenant="dev"}'] >= 1
    assert row_of(broker, "made")["messages"] == 5
    refused = quantum(broker, "queues", "delete", "made", "--if-empty")
    assert refused.exit_code == 1
    assert "not empty" in refused.output
    assert done(broker, "queues", "delete", "made")[0]["done"] == "5"
    assert row_of(broker, "made") is None
    assert quantum(broker, "queues", "show", "made").exit_code == 1


def scraped(broker: BrokerProcess) -> dict[str, float]:
    import urllib.request

    with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=WAIT) as page:
        lines = page.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_peek_takes_nothing_and_receive_takes_once(broker: BrokerProcess) -> None:
    done(broker, "queues", "create", "peeked")
    for number in range(7):
        sent = done(broker, "amqp", "send", "peeked", f"text {number}", "--subject", "s")
        assert sent == [{"accepted": True}]
    done(broker, "amqp", "send", "peeked", "-", said="bytes")
    shown = done(broker, "queues", "peek", "peeked", "--count", "3")
    assert bodies(shown) == ["text 0", "text 1", "text 2"]
    assert (shown[0]["subject"], shown[0]["body_kind"]) == ("s", "value")
    assert bodies(done(broker, "queues", "peek", "peeked"))[-1] == "bytes"
    taken = done(broker, "amqp", "receive", "peeked", "--count", "8")
    assert bodies(taken) == [*(f"text {n}" for n in range(7)), "bytes"]
    empty = quantum(broker, "amqp", "receive", "peeked", "--wait-ms", "0")
    assert (empty.exit_code, empty.output) == (1, "")


def test_stock_clients_and_commands_read_each_other(broker: BrokerProcess) -> None:
    done(broker, "queues", "create", "both")
    options = ["--property", "colour=blue", "--reply-to", "/queues/back", "--priority", "7"]
    done(broker, "amqp", "send", "both", "hello", *options)
    with connected(broker.amqp) as connection:
        (found,) = take_all(connection, "both", 1)
        assert (found.body, found.properties, found.priority) == ("hello", {"colour": "blue"}, 7)
        assert found.reply_to == "/queues/back"
        send_all(connection, "both", Message(body={"a": [1, 2]}, id=7, properties={"n": 3}))
    (row,) = done(broker, "amqp", "receive", "both")
    assert json.loads(row["body"]["text"]) == {"a": [1, 2]}
    assert (row["message_id"], row["properties"]) == ("7", [["n", "3"]])


def test_dead_letters_are_shown_revived_moved_and_purged(broker: BrokerProcess) -> None:
    for name in ("ill", "ward-a", "ward-b", "ward-c"):
        done(broker, "queues", "create", name)
    with connected(broker.amqp) as connection:
        send_all(connection, "ill", *(f"m{n}" for n in range(6)))
    done(broker, "amqp", "receive", "ill", "--count", "6", "--outcome", "rejected")
    dead = done(broker, "queues", "dead-letters", "ill")
    assert {row["dead_because"] for row in dead} == {"rejected"}
    assert scraped(broker)['quantum_amqp_dead_letters{tenant="dev"}'] >= 6
    assert done(broker, "queues", "dead-letters", "ill", "--revive", "--count", "2")
    assert bodies(done(broker, "queues", "peek", "ill")) == ["m0", "m1"]
    for target in ("ward-a", "ward-b", "ward-c"):  # some of them in other partitions
        moved = done(broker, "queues", "move", "ill", target, "--dead", "--count", "1")
        assert moved == [{"name": target, "done": "1"}]
    with connected(broker.amqp) as connection:
        (found,) = take_all(connection, "ward-a", 1)
        assert (found.body, found.delivery_count) == ("m2", 0)
        assert found.annotations[symbol("x-opt-dead-letter-reason")] == "rejected"
    assert done(broker, "queues", "purge", "ill", "--dead")[0]["done"] == "1"
    assert done(broker, "queues", "move", "ill", "ward-a")[0]["done"] == "2"
    assert bodies(done(broker, "queues", "peek", "ward-a")) == ["m0", "m1"]
    row = row_of(broker, "ill")
    assert (row["messages"], row["dead_letters"], row["oldest_ms"]) == (0, 0, None)


def test_what_cannot_be_is_refused_with_a_sentence(broker: BrokerProcess) -> None:
    for arguments in (
        ["amqp", "send", "nobody-made-it", "x"],
        ["amqp", "receive", "nobody-made-it"],
        ["queues", "peek", "nobody-made-it"],
        ["queues", "move", "nobody-made-it", "either"],
    ):
        refused = quantum(broker, *arguments)
        assert (refused.exit_code, "no such queue" in refused.output) == (1, True), arguments
    done(broker, "queues", "create", "small", "--messages-max", "1")
    done(broker, "amqp", "send", "small", "x")
    refused = quantum(broker, "amqp", "send", "small", "y")
    assert (refused.exit_code, "no room" in refused.output) == (1, True)


def test_a_tenant_s_queues_are_bounded(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "var") as process:
        limits = "queues = 3\nqueue_messages = 5\nqueue_bytes = 2000\n"
        (process.data / "tenants.new").write_text(f"[tenants.dev.quotas]\n{limits}")
        (process.data / "tenants.new").rename(process.data / "tenants.toml")
        process.kill()
        process.start()
        with connected(process.amqp) as connection:
            send_all(connection, "one", "x")
            send_all(connection, "two", "x")
            send_all(connection, "three", "x")
            with pytest.raises(Exception, match="amqp:resource-limit-exceeded"):
                connection.create_sender("four").send(Message(body="x"), timeout=WAIT)
            sender = connection.create_sender("one")
            sender.send(Message(body="x"))
            with pytest.raises(SendException):  # by bytes
                sender.send(Message(body="x" * 3_000))
            sender.send(Message(body="x"))
            with pytest.raises(SendException):  # by messages
                sender.send(Message(body="x"))
            refused = quantum(process, "amqp", "send", "one", "x")
            assert (refused.exit_code, "all that they may" in refused.output) == (1, True)
            take_all(connection, "one", 1)
            until_accepted(sender)  # the log has the settlement a little later


def until_accepted(sender: Any) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            sender.send(Message(body="y"), timeout=WAIT)
        except SendException:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_a_file_that_begins_with_an_old_dead_letter_is_carried_forward(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "var", partitions=1)
    process.run_program(Path(__file__).with_name("small_queue_files.py"))
    with process:
        with connected(process.amqp) as connection:
            send_all(connection, "long", "the oldest")
            done(process, "amqp", "receive", "long", "--outcome", "rejected")
            body = b"x" * 20_000
            for _ in range(40):
                send_all(connection, "long", body, body)
                take_all(connection, "long", 2)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (kept := file_bytes(process)) > 300_000:
            assert time.monotonic() < deadline, kept
            time.sleep(0.1)
        process.kill()
        process.start()
        assert bodies(done(process, "queues", "dead-letters", "long")) == ["the oldest"]
        done(process, "queues", "dead-letters", "long", "--revive")
        with connected(process.amqp) as connection:
            assert take_all(connection, "long", 1)[0].body == "the oldest"


def file_bytes(process: BrokerProcess) -> int:
    code, found = fetch(process.admin, "/v1/tenants/dev/queues/long")
    assert code == 200, found
    return int(found["file_bytes"])
