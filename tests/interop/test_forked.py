"""A forked process is as an executed one: number, parent, files, environment, signals, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.broker_process import BrokerProcess
from tests.interop.cluster_process import ClusterProcess
from tests.interop.forked import ForkingPopen

QUANTUM = [sys.executable, "-c", "from quantum.cli import main; main()"]
WAYS = {"forked": True, "executed": False}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_server(pid: int) -> bool:
    return b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("given", "variables"),
    {
        "an answer": (["--version"], {}),
        "a refusal": (["nonsense"], {}),
        "an empty path": (["up", "--data", ""], {}),
        "help": (["cluster", "up", "--help"], {}),
        "a setting of the environment": (["config", "show"], {"QUANTUM_MQTT": "127.0.0.1:4444"}),
        "a bad one": (["up"], {"QUANTUM_MQTT": "nowhere"}),
    }.values(),
)
def test_both_ways_give_the_same_words_and_the_same_exit(
    given: list[str],
    variables: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    for forks in WAYS.values():
        monkeypatch.setattr(ForkingPopen, "forks", forks)
        ended = subprocess.run(
            [*QUANTUM, *given],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **variables},
            check=False,
        )
        seen.append((ended.returncode, ended.stdout, ended.stderr))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("forks", WAYS.values(), ids=WAYS)
def test_a_broker_is_a_child_of_its_own_number_that_signals_end(
    forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ForkingPopen, "forks", forks)
    with BrokerProcess(tmp_path / "var", partitions=1) as broker:
        assert is_server(broker.pid) is forks
        assert parent_of(broker.pid) == os.getpid()
        assert broker.page("/v1/broker/status")["partitions"]
        assert broker.interrupt() == 0
        broker.start()
        process = broker._process
        broker.kill()
    assert process is not None
    assert process.returncode == -signal.SIGKILL


def test_nodes_are_forked_for_their_supervisor_and_orphans_are_nobodys(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "var") as cluster:
        cluster.until(lambda: len(cluster.pids) == 3, "three nodes")
        supervisor = {parent_of(pid) for pid in cluster.pids.values()}
        assert len(supervisor) == 1 and all(map(is_server, cluster.pids.values()))
        assert supervisor != {os.getpid()}
        os.kill(min(supervisor), signal.SIGKILL)
        cluster.until(
            lambda: all(parent_of(pid) not in supervisor for pid in cluster.pids.values()),
            "they are orphans",
        )
        assert os.getpid() not in {parent_of(pid) for pid in cluster.pids.values()}
        for pid in cluster.pids.values():
            os.kill(pid, signal.SIGKILL)
        cluster.until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in cluster.pids.values()),
            "somebody buried them",
        )
