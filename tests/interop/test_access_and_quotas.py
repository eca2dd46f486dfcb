"""Access lists and quotas as an operator sets them on a real broker, and as clients meet them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from quantum.cli.app import build
from quantum.cli.exits import Exit
from tests.interop.broker_process import BrokerProcess
from tests.quantum.serving.client import Client, SocketLine, connect

IN_FORCE_SECONDS: Final = 180.0
LATER: Final = (Exit.UNREACHABLE, Exit.CONFLICT, Exit.NOT_FOUND)
"""How a command ends that a busy node did not answer in time, or that came before what a new
cluster writes down about itself: whoever asks again is answered."""
OPEN: list[SocketLine] = []


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().cut()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("truth") / "data", partitions=1) as started:
        yield started


@dataclass
class Door:
    port: int

    def dial(self) -> SocketLine:
        OPEN.append(SocketLine(self.port))
        return OPEN[-1]


def quantum(broker: BrokerProcess, *arguments: str) -> Result:
    """Run a command as a person would."""
    return CliRunner().invoke(build([arguments[0]]), [*arguments, "--admin", str(broker.admin)])


def told(broker: BrokerProcess, *arguments: str) -> Result:
    """Run a command until the broker has answered it."""
    results: list[Result] = []

    def answered() -> bool:
        results.append(quantum(broker, *arguments))
        return results[-1].exit_code not in LATER

    until(answered, f"{arguments} is answered")
    return results[-1]


def done(broker: BrokerProcess, *arguments: str) -> Any:
    found = told(broker, *arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + IN_FORCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def client(broker: BrokerProcess, name: str) -> Client:
    return connect(Door(broker.mqtt), client_id=name)


def let_in(broker: BrokerProcess, name: str) -> Client:
    """Connect as soon as there is room: who hung up is counted until the broker has seen it."""
    found: list[Client] = []

    def is_let_in() -> bool:
        found.append(client(broker, name))
        return not found[-1].connack.reason_code.is_failure

    until(is_let_in, f"{name} is let in")
    return found[-1]


def test_one_denied_topic_costs_nothing_else_and_the_rule_is_named(broker: BrokerProcess) -> None:
    """Issue 20, 9: Deny Subscribe `test/nosubscribe` and Allow Any `#`."""
    rules = [
        {"effect": "Deny", "action": "Subscribe", "filter": "test/nosubscribe"},
        {"effect": "Allow", "action": "Any", "filter": "#"},
    ]
    done(broker, "admin", "tenants", "set-acls", "dev", "--rules", json.dumps(rules))
    asked = ("explain", "access", "reader", "subscribe", "test/nosubscribe")
    until(lambda: told(broker, *asked).exit_code == 1, "the rules are in force")
    said = told(broker, *asked).stdout
    assert "refused by rule 1 (Deny Subscribe test/nosubscribe)" in said
    granted = told(broker, "explain", "access", "reader", "subscribe", "#")
    assert granted.exit_code == 0
    assert "allowed by rule 2 (Allow Any #)" in granted.stdout
    reader, writer = client(broker, "reader"), client(broker, "writer")
    assert reader.subscribe(b"test/nosubscribe", 1).is_failure
    assert not reader.subscribe(b"#", 1).is_failure
    for topic in (b"test/nosubscribe", b"test/other"):
        assert not writer.publish(topic, b"", 1).is_failure
    assert reader.take().topic == b"test/other"


def test_rules_about_streams_and_groups_are_stored_and_explained(broker: BrokerProcess) -> None:
    """One list for every protocol: the node that enforces it names the rule that decides."""
    rules = [
        {"effect": "Allow", "action": "Any", "filter": "#"},
        {"effect": "Allow", "action": "Produce", "resource": "Stream", "prefix": "orders-"},
        {"effect": "Deny", "action": "Any", "resource": "Stream", "name": "orders-old"},
    ]
    done(broker, "admin", "tenants", "set-acls", "dev", "--rules", json.dumps(rules))
    asked = ("explain", "access", "shop", "produce")
    refused = "refused by rule 3 (Deny Any stream orders-old)"
    until(lambda: refused in told(broker, *asked, "orders-old").stdout, "the rules are in force")
    granted = told(broker, *asked, "orders-eu")
    assert (
        granted.exit_code,
        "allowed by rule 2 (Allow Produce stream orders-*)" in granted.stdout,
    ) == (0, True)
    group = ("explain", "access", "shop", "consume", "g", "--resource", "group")
    assert told(broker, *group).exit_code == 1
    senseless = told(broker, "explain", "access", "shop", "produce", "g", "--resource", "group")
    assert senseless.exit_code == 2
    assert not client(broker, "writer").publish(b"any", b"", 1).is_failure


def test_quotas_change_as_named_and_admit_as_many_as_they_say(broker: BrokerProcess) -> None:
    """Issue 20, 9: what is left out stays; without a grace 2 admits 2."""
    named = {"connections_max": 2, "overage_grace_ms": 0}
    done(broker, "admin", "tenants", "set-quotas", "dev", "--quotas", json.dumps(named))
    one = '{"shared_groups_max": 7}'
    changed = done(broker, "admin", "tenants", "set-quotas", "dev", "--quotas", one)
    assert changed["result"]["takes_effect"] == {"shared_groups_max": "live"}
    held = done(broker, "admin", "tenants", "quotas", "dev")
    kept = ("connections_max", "overage_grace_ms", "shared_groups_max")
    assert [held[name] for name in kept] == ["2", "0", "7"]
    clients = [let_in(broker, f"c{n}") for n in range(2)]

    def third_is_refused() -> bool:
        return client(broker, "third").connack.reason_code.is_failure

    until(third_is_refused, "the third is refused")
    for each in clients:
        assert not each.publish(b"t", b"", 1).is_failure, "those within the quota stay"

    def is_told() -> bool:
        """Who cannot reach the broker tells of the files alone."""
        explained = done(broker, "config", "explain", "connections_max", "--tenant", "dev")
        return bool(explained["value"] == "2")

    until(is_told, "the quota is told with its source")
