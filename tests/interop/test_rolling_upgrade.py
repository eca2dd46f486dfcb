"""Three hosts go from an earlier build to this one and back, one by one, while clients publish."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clustor.runtime.build import build
from tests.interop.host_processes import HostProcesses
from tests.interop.namespaces import CLIENT, Network, why_impossible
from tests.interop.test_hosts import disk_of_their_own

IMPOSSIBLE = why_impossible()
pytestmark = [
    pytest.mark.skipif(IMPOSSIBLE is not None, reason=str(IMPOSSIBLE)),
    pytest.mark.timeout(1_500),  # six restarts, one after the other, however slow the machine is
]

ROOT = Path(__file__).parents[2]
EARLIER = "5398135fbdc3"
"""A commit whose nodes served MQTT, Kafka and AMQP on hosts; later ones must get along with it."""
HOSTS = (1, 2, 3)
SECONDS = 600.0


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Lay out the earlier build's sources; return what lets a process run them."""
    place = tmp_path_factory.mktemp("earlier")
    known = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", EARLIER, "src"],
        capture_output=True,
        check=False,
    )
    if known.returncode != 0:
        pytest.skip("this clone has no history: the earlier build cannot be laid out")
    subprocess.run(["tar", "-x", "-C", str(place)], input=known.stdout, check=True)
    return {"PYTHONPATH": str(place / "src"), "QUANTUM_GIT_SHA": EARLIER}


@pytest.fixture
def hosts(tmp_path: Path, earlier: Mapping[str, str]) -> Iterator[HostProcesses]:
    with (
        Network(3) as network,
        disk_of_their_own(tmp_path),
        HostProcesses(tmp_path, network, 3, earlier) as running,
    ):
        running.until(lambda: running.all_led(3), "all groups are led by three voters")
        yield running


class Publisher(threading.Thread):
    """Publishes batches through one host after the other; keeps what was acknowledged."""

    def __init__(self, hosts: HostProcesses) -> None:
        super().__init__(daemon=True)
        self._hosts = hosts
        self.acknowledged: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self.stopping.is_set():
            lines = [f"{turn}-{number}" for number in range(20)]
            if self._hosts.publish(HOSTS[turn % 3], "rolling/a", lines):
                self.acknowledged += lines
            turn += 1


def roll(hosts: HostProcesses, to: str, new: Mapping[str, str]) -> list[str]:
    """Run the command; restart each node when it says so. Returns what it said."""
    line = ["ip", "netns", "exec", hosts.network.namespace(CLIENT), sys.executable]
    line += ["-m", "quantum.cli", "cluster", "upgrade", "--run", "--data", str(hosts.office)]
    line += ["--to", to, "--timeout", str(SECONDS)]
    said: list[str] = []
    with subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        late = threading.Timer(SECONDS, run.kill)
        late.start()
        assert run.stderr is not None and run.stdout is not None
        for each in run.stderr:
            said.append(each.strip())
            if "restart it now" in each:
                host = int(each.split(":")[0].removeprefix("node "))
                assert hosts.stop(host) == 0, hosts.last_words()
                hosts.start(host, new)
        said.append(run.stdout.read().strip())
        assert run.wait() == 0, "\n".join(said) + hosts.last_words()
        late.cancel()
    return said


def builds(hosts: HostProcesses) -> dict[int, str]:
    told = hosts.run("cluster", "upgrade", "--plan", "--json", "--data", str(hosts.office))
    return {node["node_id"]: node["build"] for node in json.loads(told)["nodes"]}


def test_an_upgrade_and_the_way_back_lose_nothing(
    hosts: HostProcesses, earlier: Mapping[str, str]
) -> None:
    this = build()
    mine, theirs = f"{this.version}+{this.commit[:12]}", f"{this.version}+{EARLIER}"
    assert all(each.startswith(theirs) for each in builds(hosts).values())
    hosts.subscribe(1, "rolling/#")
    publisher = Publisher(hosts)
    publisher.start()
    try:
        there = roll(hosts, mine, {"QUANTUM_GIT_SHA": this.commit})
        assert there[-1] == f"every node runs {mine}; 3 of 3 were upgraded"
        assert all(each.startswith(mine) for each in builds(hosts).values())
        back = roll(hosts, theirs, earlier)
        assert back[-1] == f"every node runs {theirs}; 3 of 3 were upgraded"
    finally:
        publisher.stopping.set()
        publisher.join(SECONDS)
    assert publisher.acknowledged
    got = hosts.read(2, "rolling/#", len(publisher.acknowledged))
    assert set(publisher.acknowledged) <= set(got)
