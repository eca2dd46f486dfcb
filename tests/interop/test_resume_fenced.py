"""A group that an error of our own has fenced: the control plane knows, an operator resumes it, and
the node opens that one group anew while everything else goes on."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clustor.control import AdminResumePartition, Command, IssueBreakGlass, OverrideScope
from clustor.control.objects import canonical
from clustor.runtime.control.records import operator_of
from clustor.runtime.kv.client import KvClient, KvUnavailable
from clustor.runtime.pki.identity import cluster_id
from quantum.cli.admin_client import AdminUnreachable, fetch
from tests.interop.broker_process import BrokerProcess
from tests.interop.planted_once import WORD
from tests.interop.test_half_open import Port
from tests.quantum.serving.client import connect

DEADLINE_SECONDS = 180.0
STORE, NODE = 1, 1


class PlantedBroker(BrokerProcess):
    """A broker whose store slips once."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, partitions=1)
        self._command[1:3] = ["-m", "tests.interop.planted_once"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlantedBroker]:
    with PlantedBroker(tmp_path_factory.mktemp("resume") / "var") as found:
        yield found


def until(broker: BrokerProcess, condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        with suppress(AdminUnreachable, KeyError):
            if condition():
                return
        assert time.monotonic() < deadline, f"never: {what}\n{broker.last_words()}"
        time.sleep(0.02)


def call(broker: BrokerProcess, command: Command, name: str, glass: str = "") -> dict[str, Any]:
    """Call the control plane as the operator; the answer, whatever it says."""
    wanted = {"request_id": name, "command": json.loads(canonical(command)), "seconds_max": 60}
    wanted |= {"break_glass": glass} if glass else {}
    line = http.client.HTTPConnection(
        broker.admin.host, broker.admin.port, timeout=DEADLINE_SECONDS
    )
    head = {"Content-Type": "application/json"}
    line.request("POST", "/control/call", json.dumps(wanted), head)
    response = line.getresponse()
    answer = json.loads(response.read())
    line.close()
    assert response.status == 200, answer
    return dict(answer)


def store(broker: BrokerProcess) -> dict[str, Any]:
    return dict(broker.page("/status")["groups"][STORE - 1])


def quarantines(broker: BrokerProcess) -> list[dict[str, Any]]:
    code, rows = fetch(broker.admin, "/v1/quarantines")
    return list(rows["items"]) if code == 200 else []


def put(broker: BrokerProcess, key: bytes, value: bytes, seconds: float = DEADLINE_SECONDS) -> None:
    async def write() -> None:
        async with KvClient([broker.admin], timeout_seconds=seconds) as client:
            await client.put(key, value)

    asyncio.run(write())


def get(broker: BrokerProcess, key: bytes) -> bytes | None:
    async def read() -> bytes | None:
        async with KvClient([broker.admin], timeout_seconds=DEADLINE_SECONDS) as client:
            found = await client.get(key)
            return None if found is None else found.value

    return asyncio.run(read())


def is_held_by_the_word(broker: BrokerProcess) -> bool:
    """Put what slips, as long as the group takes it; say whether it is held."""
    if store(broker)["state"] == "Running":
        with suppress(KvUnavailable):  # it may have happened: it is committed, and not answered
            put(broker, WORD, b"x", seconds=2)
    return bool(store(broker)["state"] == "Quarantine")


def test_a_fenced_group_is_reported_and_resumed(broker: PlantedBroker) -> None:
    pid, witness = broker.pid, connect(Port(broker.mqtt))
    put(broker, b"before", b"kept")
    until(broker, lambda: is_held_by_the_word(broker), "the group is held")
    until(broker, lambda: len(quarantines(broker)) == 1, "the control plane knows")
    (held,) = quarantines(broker)
    assert (held["partition_id"], held["cause"]) == (str(STORE), "ApplyFault")
    assert "ZeroDivisionError" in held["detail"] and "secret" not in held["detail"]
    assert not witness.publish(b"witness", b"others go on", 1).is_failure

    actor = operator_of(cluster_id("dev")).identity
    glass = IssueBreakGlass(
        token_id="g1",
        scope=OverrideScope.QUARANTINE,
        actor_id=actor,
        ticket_url="https://tickets/1",
        ttl_ms=300_000,
    )
    call(broker, glass, "issue")
    resume = AdminResumePartition(partition_id=STORE, node_id=NODE, justification="looked into")
    answer = call(broker, resume, "resume", glass="g1")
    assert "cleared_at" in json.dumps(answer), answer
    until(broker, lambda: store(broker)["state"] == "Running", "the group is opened anew")
    assert get(broker, b"before") == b"kept", "what was acknowledged is there"
    assert get(broker, WORD) == b"x", "what was committed is applied"
    put(broker, b"after", b"new")
    assert not quarantines(broker)
    assert broker.pid == pid, "the process is the same"
    assert not witness.publish(b"witness", b"still", 1).is_failure
    witness.cut()
