"""A real cluster of real processes, started by the real command, for tests and benchmarks.

Who leads and who is slow can be varied: see `luck`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file, read_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import cluster_id, utc_now
from quantum.cli.admin_client import AdminUnreachable, fetch_status
from tests.clustor.runtime.waiting import free_base_port
from tests.interop import luck

DEADLINE_SECONDS = 180.0
PATIENT = 20
"""Elections after three to six seconds instead of 150 to 300 ms."""
UNHURRIED = 4
"""For elections under load: five groups that wait for one slow disk agree on nobody in 300 ms."""
_NODE_LINE = re.compile(r"node (\d+) pid=(\d+) peer=(\S+) admin=(\S+)")
_COMMAND = "from quantum.cli.cluster import app; app()"


class ClusterProcess:
    """`quantum cluster up` in a process of its own; leave the context to stop it."""

    def __init__(
        self,
        data: Path,
        *,
        nodes: int = 3,
        groups: int = 1,
        restart: bool = True,
        spare_nodes: int = 0,
        tenant_prgs: int = 0,
        patience: int = 1,
        archive: str | None = None,
    ) -> None:
        """Describe it. A patient one elects no leader while its machine is only slow: for tests
        whose subject is not an election."""
        self.data = data
        self.nodes = nodes
        self.base_port = free_base_port(nodes + spare_nodes)
        self._arguments = ["up", "--data", str(data), "--nodes", str(nodes)]
        self._arguments += ["--base-port", str(self.base_port), "--groups", str(groups)]
        self._arguments += ["--tenant-prgs", str(tenant_prgs)]
        self._arguments += [] if restart else ["--no-restart"]
        self._groups = groups
        self._patience = patience
        self._arguments += [] if archive is None else ["--archive", archive]
        self.pids: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._meddlers: list[luck.Meddler] = []

    def __enter__(self) -> Self:
        is_new = not any(self.data.glob("node-*/state"))
        self.start()
        if is_new:
            self._vary_luck()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        if self._patience > 1 and not (self.data / CLUSTER_FILE).exists():
            self._prepare()
        self.pids.clear()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *self._arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _vary_luck(self) -> None:
        """Meddle as the environment says, where it says anything."""
        if self.nodes == 1 or not (luck.ROAMS or luck.SEATS or luck.SLOW):
            return
        self.until(lambda: luck.has_leaders(self.admins()), "all are there, and led")
        is_patient = read_cluster_file(self.data / CLUSTER_FILE).patience > 1
        if luck.SEATS and max(luck.SEATS) <= self.nodes:
            luck.seat(self.admins())
        if luck.ROAMS and not is_patient:
            self._meddlers.append(luck.Roaming(self.admins))
        if luck.SLOW and is_patient:
            self._meddlers.append(luck.Slowing(lambda: self.pids.get(luck.SLOW)))

    def _prepare(self) -> None:
        made = prepare_cluster(
            self.data,
            cluster_id("dev"),
            nodes=self.nodes,
            base_port=self.base_port,
            groups=self._groups,
            now=utc_now(),
        )
        patient = msgspec.structs.replace(made, patience=self._patience)
        (self.data / CLUSTER_FILE).write_bytes(encode_cluster_file(patient))

    def stop(self) -> int:
        """Ask the command to stop, and return its exit code."""
        process = self._process
        if process is None:
            return 0
        for meddler in self._meddlers:
            meddler.stop()
        self._meddlers.clear()
        if process.poll() is None:
            process.terminate()
        code = process.wait(120)
        assert self._reader is not None
        self._reader.join(60)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        return code

    def wait(self) -> int:
        """Return the exit code of a command that ends by itself."""
        assert self._process is not None
        self._process.wait(DEADLINE_SECONDS)
        return self.stop()

    def kill(self, node: int) -> None:
        """End a node as a power cut would end its process, if it did not end by itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid(node), signal.SIGKILL)

    def pid(self, node: int) -> int:
        """Return a node's process, once the command has named it."""
        self.until(lambda: node in self.pids, f"node {node} is started")
        return self.pids[node]

    def started(self, node: int) -> int:
        """Say how often a node was started."""
        self.pid(node)
        return self.starts[node]

    def admin(self, node: int) -> Address:
        return Address("127.0.0.1", self.base_port + 10 * node + 1)

    def admins(self) -> list[Address]:
        return [self.admin(node) for node in range(1, self.nodes + 1)]

    def status(self, node: int) -> dict[str, Any] | None:
        """Return a node's status, or None while it does not answer."""
        try:
            return fetch_status(self.admin(node))
        except AdminUnreachable:
            return None

    def group(self, node: int, partition: int = 1) -> dict[str, Any] | None:
        status = self.status(node)
        if status is None or len(status["groups"]) < partition:
            return None
        found: dict[str, Any] = status["groups"][partition - 1]
        return found

    def wait_for_group(self, node: int, partition: int = 1) -> dict[str, Any]:
        """Return a group as a node sees it, once the node answers."""
        answers: list[dict[str, Any]] = []

        def answered() -> bool:
            found = self.group(node, partition)
            answers.extend([] if found is None else [found])
            return bool(answers)

        self.until(answered, f"node {node} answers")
        return answers[0]

    def leader(self, partition: int = 1, *, but: int = 0) -> int | None:
        """Return the node that leads in the highest term, if one does."""
        leading: list[tuple[int, int]] = []
        for node in range(1, self.nodes + 1):
            group = self.group(node, partition) if node != but else None
            if group is not None and group["role"] == "Leader":
                leading.append((group["term"], node))
        return max(leading)[1] if leading else None

    def wait_for_leader(self, partition: int = 1, *, but: int = 0) -> int:
        def led() -> bool:
            return self.leader(partition, but=but) is not None

        self.until(led, "a leader")
        found = self.leader(partition, but=but)
        return found if found is not None else self.wait_for_leader(partition, but=but)

    def caught_up(self, node: int, partition: int = 1) -> bool:
        """Say whether a node has applied what was committed before this, by its leader's own word.

        It is asked last: others may write all the while.
        """
        answers = [self.group(each, partition) for each in range(1, self.nodes + 1)]
        groups = [group for group in answers if group is not None]
        mine = self.group(node, partition)
        term = max((group["term"] for group in groups), default=0)
        if mine is None or mine["state"] != "Running":
            return False
        if not any(group["role"] == "Leader" and group["term"] == term for group in groups):
            return False
        newest = max(group["commit_index"] for group in groups)
        return bool(mine["applied_index"] >= newest)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return as soon as the condition holds; fail with the nodes' last words otherwise.

        A node that does not answer within the two seconds of a call is asked again. Each question
        takes a port of the machine's for a minute: whoever waits long asks less often.
        """
        deadline, pause = time.monotonic() + DEADLINE_SECONDS, 0.005
        while not is_so(condition):
            assert time.monotonic() < deadline, f"never: {what}\n{self.last_words()}"
            time.sleep(pause)
            pause = min(0.1, 1.2 * pause)

    def last_words(self) -> str:
        logs = sorted(self.data.glob("node-*.log"))
        return "\n".join(f"{log.name}: {line}" for log in logs for line in _tail(log)) + "\n".join(
            self.lines
        )

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line.rstrip())
            found = _NODE_LINE.match(line)
            if found is not None:
                node = int(found[1])
                self.pids[node] = int(found[2])
                self.starts[node] = self.starts.get(node, 0) + 1


def is_so(condition: Callable[[], bool]) -> bool:
    """Say whether a condition holds; a node that does not answer does not say so."""
    try:
        return condition()
    except AdminUnreachable:
        return False


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-15:]
