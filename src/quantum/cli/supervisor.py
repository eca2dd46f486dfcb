"""Keeping the node processes of a development cluster running, as `cluster.json` lists them."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

import typer

from clustor.runtime.cluster_file import CLUSTER_FILE, ClusterFile, NodeEntry, read_cluster_file
from clustor.runtime.data_directory import REJOIN_FILE
from clustor.runtime.development import node_directory
from clustor.runtime.errors import NodeError
from clustor.runtime.keys.operator_keys import OFFICE_FILE
from clustor.runtime.keys.store import KEYS_DIRECTORY
from clustor.runtime.pki.identity import NodeId
from quantum.cli.cluster_greeting import Greeting, mqtt_of
from quantum.cli.exits import Exit
from quantum.cli.node_exits import FINAL_NODE_EXITS

RESTART_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.2  # how often the list of nodes is looked at
TEND_SECONDS: Final = 3_600.0  # how often keys are looked at that no node has
_TEND: Final = "from quantum.cli.keys import app; app()"
STOP_SECONDS_MAX: Final = 30.0
"""A node's graceful stop is bounded at 10 by its own clock, which a busy machine holds up."""


class Supervisor:
    """Start every node, start a dead one again, stop them all when told to.

    A node that is listed later is started then, one that leaves the list is stopped. One whose
    replica must not start is left alone, while others run, until it is permitted to rejoin.
    """

    def __init__(self, root: Path, cluster: ClusterFile, *, restart: bool) -> None:
        self._root = root
        self._cluster = cluster
        self._restart = restart
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._due: dict[int, float] = {}  # when a dead node is started again
        self._refused: dict[int, Exit] = {}  # nodes whose replica must not start
        self._leaving: dict[int, float] = {}  # by when a node that was taken off the list ends
        self._seen_ns = _changed_ns(root)
        self._stopping = False
        self._greeting = Greeting(root)
        self._tend_at = time.monotonic() + TEND_SECONDS
        self._tending: subprocess.Popen[bytes] | None = None
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def run(self) -> int:
        """Run until a signal comes or a node cannot run at all; return the exit code."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for entry in self._cluster.nodes:
            self._start(entry)
        code = 0
        while not self._stopping and (self._running or self._due):
            self._wait()
            code = code or self._reap()
            if code:
                break
            self._start_due()
            self._follow_list()
            self._tend_keys()
            self._greeting.say_when_ready(self._cluster)
        self._stop_all()
        return code

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _wait(self) -> None:
        """Sleep until a signal, until a node is due, or until the list is looked at again."""
        soonest = min(self._due.values(), default=time.monotonic() + LOOK_SECONDS)
        timeout = min(LOOK_SECONDS, max(0.0, soonest - time.monotonic()))
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if selector.select(timeout):
                os.read(self._woken, 4096)

    def _start(self, entry: NodeEntry) -> None:
        command = [sys.executable, "-m", "quantum.admin.main"]
        command += ["--cluster", str(self._root / CLUSTER_FILE), "--node", str(entry.node_id)]
        command += ["--data", str(node_directory(self._root, entry.id))]
        log = self._root / f"node-{entry.node_id}.log"
        with log.open("ab") as output:
            # A group of its own: Ctrl-C is for this process, which stops the nodes. Not a session
            # of its own: Linux would then schedule each node against everything else as one.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        self._running[entry.node_id] = process
        places = f"peer={entry.peer} admin={entry.admin}"
        if self._greeting.serves_mqtt:
            places += f" mqtt={mqtt_of(entry)}"
        typer.echo(f"node {entry.node_id} pid={process.pid} {places}")
        sys.stdout.flush()

    def _reap(self) -> int:
        """Take note of nodes that ended; return an exit code if one cannot run at all."""
        for node_id, process in list(self._running.items()):
            ended = process.poll()
            if ended is None:
                continue
            del self._running[node_id]
            if self._leaving.pop(node_id, None) is not None:
                typer.echo(f"node {node_id} has left")
                continue
            final = FINAL_NODE_EXITS.get(ended)
            if final is Exit.REPLICA:
                self._refused[node_id] = final
                typer.echo(f"quantum: {self._last_words(node_id)}", err=True)
                continue
            if final is not None:
                typer.echo(f"quantum: {self._last_words(node_id)}", err=True)
                return int(final)
            typer.echo(f"node {node_id} ended with {_describe(ended)}")
            if self._restart:
                self._due[node_id] = time.monotonic() + RESTART_SECONDS
        if self._running or self._due:
            return 0
        return int(next(iter(self._refused.values()), Exit.FAILED))

    def _tend_keys(self) -> None:
        """Once an hour, let release keys and break-glass authorities age as they must."""
        if self._tending is not None and self._tending.poll() is not None:
            self._tending = None
        if self._tending is not None or time.monotonic() < self._tend_at:
            return
        self._tend_at = time.monotonic() + TEND_SECONDS
        nodes = [entry for entry in self._cluster.nodes if entry.node_id in self._running]
        if not nodes or not (self._root / KEYS_DIRECTORY / OFFICE_FILE).exists():
            return
        given = ["tend", "--data", str(self._root), "--admin", str(nodes[0].admin)]
        with (self._root / "keys.log").open("ab") as output:
            self._tending = subprocess.Popen(
                [sys.executable, "-c", _TEND, *given],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _follow_list(self) -> None:
        """Start nodes that joined, stop those that left, try those that may rejoin."""
        for node_id in list(self._refused):
            if (node_directory(self._root, NodeId(node_id)) / REJOIN_FILE).exists():
                del self._refused[node_id]
                self._due[node_id] = time.monotonic()
        for node_id in [each for each, by in self._leaving.items() if by <= time.monotonic()]:
            self._running[node_id].kill()
        changed_ns = _changed_ns(self._root)
        if changed_ns == self._seen_ns:
            return
        self._seen_ns = changed_ns
        try:
            cluster = read_cluster_file(self._root / CLUSTER_FILE)
        except NodeError as error:
            typer.echo(f"quantum: {error}", err=True)
            return
        before, self._cluster = self._cluster, cluster
        known = {entry.node_id for entry in before.nodes}
        for entry in cluster.nodes:
            if entry.node_id not in known:
                self._start(entry)
        for node_id in known - {entry.node_id for entry in cluster.nodes}:
            self._let_go(node_id)

    def _let_go(self, node_id: int) -> None:
        self._due.pop(node_id, None)
        self._refused.pop(node_id, None)
        if node_id in self._running:
            self._leaving[node_id] = time.monotonic() + STOP_SECONDS_MAX
            self._running[node_id].terminate()

    def _last_words(self, node_id: int) -> str:
        lines = (self._root / f"node-{node_id}.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else f"node {node_id} ended without a word"

    def _start_due(self) -> None:
        now = time.monotonic()
        for node_id in [node_id for node_id, due in self._due.items() if due <= now]:
            del self._due[node_id]
            entry = next(each for each in self._cluster.nodes if each.node_id == node_id)
            self._start(entry)

    def _stop_all(self) -> None:
        """Ask every node to stop, and wait for each as long as a graceful stop may take."""
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for process in self._running.values():
            process.terminate()
        for node_id, process in self._running.items():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                typer.echo(f"node {node_id} did not stop in time and was killed")
        self._running.clear()


def _changed_ns(root: Path) -> int:
    """Return when the list was last replaced."""
    return (root / CLUSTER_FILE).stat().st_mtime_ns


def _describe(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
