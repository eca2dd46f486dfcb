"""Connections that never say who they are: so many and no more, and nobody else notices."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.interop.broker_process import HOST, BrokerProcess
from tests.interop.machine import slowness
from tests.quantum.serving.client import Client, SocketLine, connect

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
    with urlopen(f"http://{HOST}:{broker.admin.port}/metrics", timeout=60) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
    raise AssertionError(f"no {name}")


@dataclass
class Flood:
    opened: int = 0
    worst_seconds: float = 0.0
    """A good client's worst wait for an acknowledgement."""
    half_open_most: float = 0.0


def publish(good: Client) -> float:
    """Publish once; return how long the acknowledgement took."""
    begin = time.monotonic()
    assert not good.publish(b"good", b"still here", 1).is_failure
    return time.monotonic() - begin


def has_spoken(flooding: subprocess.Popen[bytes]) -> bool:
    """Say whether a process has opened all; it holds the last of them until its input ends."""
    assert flooding.stdout is not None
    return flooding.poll() is not None or bool(select.select([flooding.stdout], [], [], 0)[0])


def flood(broker: BrokerProcess, good: Client, processes: int, count: int, waves: int) -> Flood:
    """Let processes open connections while a good client goes on publishing."""
    command = [sys.executable, "-m", "tests.interop.half_open", str(broker.mqtt)]
    running = [
        subprocess.Popen(
            [*command, str(count), str(waves)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(processes)
    ]
    found = Flood()
    while not all(has_spoken(each) for each in running):
        for _ in range(50):
            found.worst_seconds = max(found.worst_seconds, publish(good))
        found.half_open_most = max(found.half_open_most, metric(broker, "quantum_half_open"))
    found.half_open_most = max(found.half_open_most, metric(broker, "quantum_half_open"))
    for each in running:
        said, _ = each.communicate()
        found.opened += int(said)
    return found


def check(broker: BrokerProcess, *, processes: int, count: int, waves: int, bound: int) -> None:
    good = connect(Port(broker.mqtt))
    before, calm = rss_bytes(broker.pid), max(publish(good) for _ in range(100))
    found = flood(broker, good, processes, count, waves)
    grown = rss_bytes(broker.pid) - before
    good.cut()
    connect(Port(broker.mqtt)).cut()  # others get in as ever
    crowded = metric(broker, 'quantum_door_total{what="crowded_out"}')
    late = metric(broker, 'quantum_door_total{what="late"}')
    print(f"{found.opened} opened, {found.half_open_most:.0f} at once, {crowded:.0f} crowded out")
    print(f"{late:.0f} late, worst wait {found.worst_seconds:.3f} s ({calm:.3f} s before)")
    print(f"{grown / (1 << 20):.1f} MiB more")
    assert found.opened == processes * count * waves
    assert 0 < found.half_open_most <= bound and crowded > 0
    assert grown < RSS_BYTES_MAX
    if found.worst_seconds >= LATENCY_SECONDS_MAX:  # unless the machine is busy with another
        assert found.worst_seconds < (LATENCY_SECONDS_MAX + 2 * calm) * 2 * slowness()


def test_two_thousand_half_open_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTUM_HALF_OPEN_MAX", "500")
    with BrokerProcess(tmp_path / "var") as broker:
        check(broker, processes=1, count=2_000, waves=1, bound=500)


@pytest.mark.soak
def test_a_hundred_thousand_half_open_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 processes, 20,000 each, in waves of 4,000; a broker that lets 5,000 be half open."""
    monkeypatch.setenv("QUANTUM_HALF_OPEN_MAX", "5000")
    with BrokerProcess(tmp_path / "var") as broker:
        check(broker, processes=5, count=4_000, waves=5, bound=5_000)
