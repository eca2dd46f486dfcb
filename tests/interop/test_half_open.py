"""Connections that never say who they are: so many and no more, and nobody else notices."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.interop.broker_process import HOST, BrokerProcess
from tests.quantum.serving.client import SocketLine, connect

LATENCY_SECONDS_MAX = 1.0
RSS_BYTES_MAX = 128 << 20
"""How much a broker may grow by while its half-open connections are at their bound."""


@dataclass
class Port:
    number: int

    def dial(self) -> SocketLine:
        return SocketLine(self.number)


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no such process")


def metric(broker: BrokerProcess, name: str) -> float:
    with urlopen(f"http://{HOST}:{broker.admin.port}/metrics", timeout=10) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
    raise AssertionError(f"no {name}")


def flood(broker: BrokerProcess, processes: int, count: int, waves: int) -> tuple[int, float]:
    """Let processes open connections; return how many, and a good client's worst latency."""
    good = connect(Port(broker.mqtt))
    command = [sys.executable, "-m", "tests.interop.half_open", str(broker.mqtt)]
    running = [
        subprocess.Popen([*command, str(count), str(waves)], stdout=subprocess.PIPE)
        for _ in range(processes)
    ]
    worst = 0.0
    while any(each.poll() is None for each in running):
        begin = time.monotonic()
        assert not good.publish(b"good", b"still here", 1).is_failure
        worst = max(worst, time.monotonic() - begin)
        time.sleep(0.01)
    opened = 0
    for each in running:
        assert each.stdout is not None
        opened += int(each.stdout.read())
        each.stdout.close()
        each.wait()
    begin = time.monotonic()
    connect(Port(broker.mqtt)).cut()
    worst = max(worst, time.monotonic() - begin)
    good.cut()
    return opened, worst


def check(broker: BrokerProcess, *, processes: int, count: int, waves: int, bound: int) -> None:
    before = rss_bytes(broker.pid)
    opened, worst = flood(broker, processes, count, waves)
    grown = rss_bytes(broker.pid) - before
    crowded = metric(broker, 'quantum_door_total{what="crowded_out"}')
    turned_away = metric(broker, 'quantum_door_total{what="turned_away"}')
    print(f"{opened} opened, {crowded:.0f} crowded out, {turned_away:.0f} turned away")
    print(f"worst latency {worst:.3f} s, {grown / (1 << 20):.1f} MiB more")
    assert metric(broker, "quantum_half_open") <= bound
    assert crowded + turned_away + bound >= opened - processes * count // 2
    assert crowded > 0
    assert grown < RSS_BYTES_MAX
    assert worst < LATENCY_SECONDS_MAX


def test_two_thousand_half_open_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTUM_HALF_OPEN_MAX", "500")
    with BrokerProcess(tmp_path / "var") as broker:
        check(broker, processes=1, count=2_000, waves=1, bound=500)


@pytest.mark.soak
def test_a_hundred_thousand_half_open_connections(tmp_path: Path) -> None:
    """5 processes, 20,000 each, in waves of 4,000."""
    with BrokerProcess(tmp_path / "var") as broker:
        check(broker, processes=5, count=4_000, waves=5, bound=10_000)
