"""What is in `deploy/` against a live node: every series that an expression names is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.broker_process import DEADLINE_SECONDS, BrokerProcess
from tests.quantum.serving.client import SocketLine, connect

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
_METRIC: Final = re.compile(r"\b((?:quantum|clustor|process)_[a-z0-9_]+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_WORD: Final = re.compile(r"[\w.:/+-]*")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    root = tmp_path_factory.mktemp("deploy")
    archive = (root / "archive").as_uri()
    with BrokerProcess(
        root / "data", partitions=1, archive=archive, backup_seconds=3_600
    ) as started:
        yield started


@pytest.fixture(scope="module")
def scraped(broker: BrokerProcess) -> str:
    """What a scrape gives once a client has published and received."""

    class Door:
        @staticmethod
        def dial() -> SocketLine:
            return SocketLine(broker.mqtt)

    client = connect(Door(), client_id="c")
    client.subscribe(b"t", 1)
    for _ in range(3):
        assert not client.publish(b"t", b"x" * 100, 1).is_failure
    for _ in range(3):
        client.take()  # a message may come after the acknowledgement of its publisher
    client.line.send(b"\xc1\x00")  # no packet: what is wrong with it is a series too
    while client.receive() is not None:  # until the broker has said so, and hung up
        pass
    client.cut()
    return settled(broker)


def settled(broker: BrokerProcess) -> str:
    """Scrape until the whole of what the client did is counted; its connection's end comes last."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        found = get(broker, "/metrics")
        delivered = float(values(found).get('quantum_tenant_deliveries_total{tenant="dev"}', 0))
        if (wanted() <= names(found) and delivered >= 3) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def get(broker: BrokerProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://{broker.admin}{path}", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def expressions() -> list[str]:
    rules = (DEPLOY / "prometheus-alerts.yml").read_text()
    found = re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE)
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    found += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return found


def wanted() -> set[str]:
    return {name for each in expressions() for name in _METRIC.findall(each)}


def names(scraped: str) -> set[str]:
    return set(re.findall(r"^([a-z_0-9]+)[ {]", scraped, re.MULTILINE))


def values(scraped: str) -> dict[str, str]:
    return dict(re.findall(r"^(\S+) ([\d.e+-]+)$", scraped, re.MULTILINE))


def test_every_metric_that_an_expression_names_is_there(scraped: str) -> None:
    known = names(scraped)
    assert len(wanted()) >= 15
    assert wanted() - known == set()
    assert len(expressions()) >= 25


def test_labels_are_words_and_units_are_base_units(scraped: str) -> None:
    for line in scraped.splitlines():
        if not line.startswith("#"):
            for name, value in _LABEL.findall(line):
                assert _WORD.fullmatch(value), (name, value, line)
    known = names(scraped)
    for name in known:
        if "_ms" in name:
            assert re.sub("_ms(?=_|$)", "_seconds", name) in known, name
    assert not [name for name in known if re.search("_(milliseconds|kb|kib|minutes|us)$", name)]


def test_what_a_client_did_is_counted(scraped: str) -> None:
    found = values(scraped)
    assert float(found["quantum_publish_ack_seconds_count"]) == 3
    assert 0 < float(found["quantum_publish_ack_seconds_sum"]) < DEADLINE_SECONDS
    assert float(found['quantum_tenant_deliveries_total{tenant="dev"}']) == 3
    assert float(found['quantum_tenant_received_bytes_total{tenant="dev"}']) > 300
    assert float(found['quantum_tenant_sent_bytes_total{tenant="dev"}']) > 300
    assert 'quantum_tenant_queue_messages{tenant="dev"}' in found


def test_health_is_answered_beside_life(broker: BrokerProcess) -> None:
    assert json.loads(get(broker, "/healthz")) == json.loads(get(broker, "/livez"))


def test_promtool_takes_the_rules() -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed")
    command = [program, "check", "rules", str(DEPLOY / "prometheus-alerts.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
