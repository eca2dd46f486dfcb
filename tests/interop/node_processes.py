"""Node processes that a test starts itself, each in a network namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from clustor.runtime.cluster_file import CLUSTER_FILE, ClusterFile, encode_cluster_file
from clustor.runtime.development import node_directory, prepare_cluster
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.identity import NodeId, cluster_id, utc_now
from quantum.cli.admin_client import AdminUnreachable, fetch_status
from tests.interop.namespaces import Network, within

BASE_PORT = 7000
DEADLINE_SECONDS = 180.0


class NodeProcesses:
    """One node per host of the network; leave the context to end them all."""

    def __init__(self, root: Path, network: Network, nodes: int) -> None:
        self._root = root
        self._network = network
        self.nodes = list(range(1, nodes + 1))
        self._cluster = _spread(root, network, nodes)
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for node in self.nodes:
            self.start(node)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(5)  # a node without peers cannot hand over, and takes its time
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, node: int) -> None:
        command = ["ip", "netns", "exec", self._network.namespace(node)]
        command += [sys.executable, "-m", "clustor.runtime.main"]
        command += ["--cluster", str(self._root / CLUSTER_FILE), "--node", str(node)]
        command += ["--data", str(node_directory(self._root, NodeId(node)))]
        with (self._root / f"node-{node}.log").open("ab") as output:
            self._running[node] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
            )

    def kill(self, node: int) -> None:
        """End a node as a power cut would end its process."""
        process = self._running.pop(node)
        os.kill(process.pid, signal.SIGKILL)  # `ip netns exec` became the node's own process
        process.wait()

    def admin(self, node: int) -> Address:
        return self._cluster.node(NodeId(node)).admin

    def admins(self) -> list[Address]:
        return [self.admin(node) for node in self.nodes]

    def group(self, node: int) -> dict[str, Any] | None:
        """Ask a node from its own namespace, which no cut reaches; None while it says nothing."""
        try:
            status = within(self._network.namespace(node), lambda: fetch_status(self.admin(node)))
        except AdminUnreachable:
            return None
        found: dict[str, Any] = status["groups"][0]
        return found

    def leaders(self) -> dict[int, int]:
        """Return the term of every node that believes to lead."""
        groups = {node: self.group(node) for node in self.nodes}
        return {
            node: group["term"]
            for node, group in groups.items()
            if group is not None and group["role"] == "Leader"
        }

    def none_leads(self, among: set[int] | None = None) -> bool:
        """Say whether all of `among` answer, and none believes to lead."""
        groups = [self.group(node) for node in among or self.nodes]
        return all(group is not None and group["role"] != "Leader" for group in groups)

    def wait_for_leader(self, among: set[int] | None = None) -> int:
        """Return the one node of `among` that leads, once exactly one does."""
        found: list[int] = []

        def one_leads() -> bool:
            found[:] = set(self.leaders()) & (among or set(self.nodes))
            return len(found) == 1

        self.until(one_leads, f"one leader among {among or self.nodes}")
        return found[0]

    def agree(self) -> bool:
        """Say whether all nodes follow one leader and have applied the same."""
        groups = [self.group(node) for node in self.nodes]
        states = {
            (group["leader_id"], group["term"], group["applied_index"], group["state"])
            for group in groups
            if group is not None
        }
        return None not in groups and len(states) == 1 and next(iter(states))[0] is not None

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}\n{self.last_words()}"
            time.sleep(0.02)

    def last_words(self) -> str:
        logs = sorted(self._root.glob("node-*.log"))
        return "\n".join(
            f"{log.name}: {line}"
            for log in logs
            for line in log.read_text(errors="replace").splitlines()[-20:]
        )


def _spread(root: Path, network: Network, nodes: int) -> ClusterFile:
    """Prepare a cluster whose nodes have an address each instead of a port each."""
    cluster = prepare_cluster(
        root, cluster_id("parted"), nodes=nodes, base_port=BASE_PORT, groups=1, now=utc_now()
    )
    hosts = tuple(
        msgspec.structs.replace(entry, host=network.address(entry.node_id))
        for entry in cluster.nodes
    )
    # A network that ends with the test: elsewhere plaintext is refused off loopback.
    cluster = msgspec.structs.replace(cluster, nodes=hosts, fault_injection=True)
    (root / CLUSTER_FILE).write_bytes(encode_cluster_file(cluster))
    return cluster
